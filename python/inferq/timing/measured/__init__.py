"""Where do measured tables come from, and where do they lie?"""
