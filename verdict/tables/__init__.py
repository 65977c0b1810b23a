"""Files of results, of anyone, to measurements with an account of every row, column and cell.

What a file does not say is guessed, and every guess is said, or asked for in one question.
"""
