"""The AWS resources of a consumer: described as data, created by `apply`, printed as templates."""
