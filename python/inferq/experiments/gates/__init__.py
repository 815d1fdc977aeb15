"""Is a change of a scheduler worse than what was committed?"""
