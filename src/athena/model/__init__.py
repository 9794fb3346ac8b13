"""What the product is about, as plain values."""
