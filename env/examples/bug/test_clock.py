# SPDX-License-Identifier: Apache-2.0
import unittest

import clock


class Date(unittest.TestCase):
    def test_the_first_day_of_a_year(self):
        self.assertEqual(clock.date(1), (1980, 1))
        self.assertEqual(clock.date(367), (1981, 1))
        self.assertEqual(clock.date(10594), (2009, 1))

    def test_the_last_day_of_an_ordinary_year(self):
        self.assertEqual(clock.date(731), (1981, 365))

    def test_the_last_day_of_a_leap_year(self):
        self.assertEqual(clock.date(366), (1980, 366))
        self.assertEqual(clock.date(10593), (2008, 366))
