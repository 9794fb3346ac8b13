"""Read times: phrases such as "last week", dates in many formats, epoch numbers."""
