"""Statistics of tensors, as definitions: medians and quantiles, counts, moments, sorted places."""
