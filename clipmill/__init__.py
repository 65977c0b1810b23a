"""The command `clipmill`: its words, its help, its exit statuses. The work is in the packages below
it. Nothing is imported here, so that a stop signal is handled before anything heavy is.
"""
