"""How do measured iterations become a model?"""
