"""Private inference between two parties: a client with an input and a server with weights.

plan, lower     the public program of a network, and how a network becomes one
calibrate       its fixed point
clear           the plan in one process, without cryptography
"""
