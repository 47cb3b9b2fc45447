"""The AWS resources around a consumer: described as data, made by `apply`, printed as templates."""
