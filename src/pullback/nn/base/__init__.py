"""What layers are made of: modules, parameters, and how they build definitions."""
