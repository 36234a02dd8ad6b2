# SPDX-License-Identifier: Apache-2.0
"""The calendar of a music player, as it was on the last day of 2008."""

FIRST_YEAR = 1980


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def date(days):
    """The year, and the day of it, of a day. Days count from 1, which is 1 January 1980."""
    year = FIRST_YEAR
    while days > 365:
        if is_leap(year):
            if days > 366:
                days -= 366
                year += 1
        else:
            days -= 365
            year += 1
    return year, days
