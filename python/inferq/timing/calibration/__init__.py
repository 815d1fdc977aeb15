"""How long do the layers of a model take on the device at hand?"""
