"""Object-relational mappers over `job.connection`: their writes commit with the completion."""
