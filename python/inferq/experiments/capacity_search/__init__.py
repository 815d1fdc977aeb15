"""Which load does a system carry within its objectives?"""
