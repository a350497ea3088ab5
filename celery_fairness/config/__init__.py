"""What users write: settings, tiers, policies, rates and key templates, as plain values."""
