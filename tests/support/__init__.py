"""What the tests share: servers, real worker processes, a breakable network, one way to wait."""
