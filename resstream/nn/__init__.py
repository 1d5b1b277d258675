"""The native hookable transformer: config, residual rules, norms, blocks, initialisations."""
