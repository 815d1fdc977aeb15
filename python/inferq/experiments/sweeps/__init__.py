"""What comes out over a grid of settings?"""
