"""How does a run stay within memory, however many requests there are?"""
