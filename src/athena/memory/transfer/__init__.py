"""Take records of other stores and programs in, and write out what is kept."""
