"""What is the cheapest fleet that keeps an SLO?"""
