"""Object-relational mappers over `job.connection`: what they write commits with the completion."""
