open_rounds = None
