"""Which of several systems is better, and is the difference real?"""
