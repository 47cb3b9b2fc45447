"""The store in one DynamoDB table, shared by any number of workers."""

from __future__ import annotations

from eventonce.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore"]
