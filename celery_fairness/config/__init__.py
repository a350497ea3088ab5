"""The configuration that users write, as plain values: settings, tiers, policies, rates, keys."""
