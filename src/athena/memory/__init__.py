"""What agents remember: storing, recalling, ranking and tidying it."""
