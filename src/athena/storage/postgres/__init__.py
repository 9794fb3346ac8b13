"""The PostgreSQL engine: a store on a server with pgvector."""
