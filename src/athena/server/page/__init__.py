"""The page: what agents know and do, for a person in a browser. Every view calls operations of the catalog."""
