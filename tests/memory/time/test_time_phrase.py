"""Time phrases, relative to Wednesday 18 March 2026, 15:30 in Berlin."""

import math
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from athena.errors import InvalidInput
from athena.memory.time.phrase import Period, find_phrase, parse_period
from wait_tools import succeeds_once

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 3, 18, 15, 30, tzinfo=BERLIN)

# phrase, start, end, remaining text
FOUND: list[tuple[str, str, str, str]] = [
    ("what we decided about auth last week", "2026-03-09", "2026-03-16", "what we decided about auth"),
    ("What happened today?", "2026-03-18", "2026-03-19", "What happened?"),
    ("notes from yesterday", "2026-03-17", "2026-03-18", "notes"),
    ("what we planned for tomorrow", "2026-03-19", "2026-03-20", "what we planned"),
    ("the deploy tonight", "2026-03-18T18:00", "2026-03-19T06:00", "the deploy"),
    ("open questions this week", "2026-03-16", "2026-03-23", "open questions"),
    ("bugs last month", "2026-02-01", "2026-03-01", "bugs"),
    ("the bugs of the past week", "2026-03-11", "2026-03-19", "the bugs"),
    ("bugs fixed in the past month", "2026-02-18", "2026-03-19", "bugs fixed"),
    ("bugs fixed in the last week", "2026-03-11", "2026-03-19", "bugs fixed"),
    ("what broke over the last year", "2025-03-18", "2026-03-19", "what broke"),
    ("revenue of the previous quarter", "2025-10-01", "2026-01-01", "revenue"),
    ("meetings next week", "2026-03-23", "2026-03-30", "meetings"),
    ("goals this quarter", "2026-01-01", "2026-04-01", "goals"),
    ("goals next quarter", "2026-04-01", "2026-07-01", "goals"),
    ("what did I learn last year", "2025-01-01", "2026-01-01", "what did I learn"),
    ("plans for next year", "2027-01-01", "2028-01-01", "plans"),
    ("what did I do last weekend", "2026-03-14", "2026-03-16", "what did I do"),
    ("plans for this weekend", "2026-03-21", "2026-03-23", "plans"),
    ("plans for next weekend", "2026-03-28", "2026-03-30", "plans"),
    ("what happened over the weekend", "2026-03-14", "2026-03-16", "what happened"),
    ("the weekend before last", "2026-03-07", "2026-03-09", ""),
    ("standup on Tuesday", "2026-03-17", "2026-03-18", "standup"),
    ("standup on Wednesday", "2026-03-18", "2026-03-19", "standup"),
    ("standup on Friday", "2026-03-13", "2026-03-14", "standup"),
    ("standup on Fri", "2026-03-13", "2026-03-14", "standup"),
    ("standup last Tuesday", "2026-03-17", "2026-03-18", "standup"),
    ("standup last Wednesday", "2026-03-11", "2026-03-12", "standup"),
    ("standup this Tuesday", "2026-03-17", "2026-03-18", "standup"),
    ("standup next Tuesday", "2026-03-24", "2026-03-25", "standup"),
    ("this past Tuesday", "2026-03-17", "2026-03-18", ""),
    ("Tuesday's standup", "2026-03-17", "2026-03-18", "standup"),
    ("what did we say Tuesday last week", "2026-03-10", "2026-03-11", "what did we say"),
    ("what did we say last week on Tuesday", "2026-03-10", "2026-03-11", "what did we say"),
    ("a week ago on Tuesday we met", "2026-03-10", "2026-03-11", "we met"),
    ("yesterday morning", "2026-03-17T04:00", "2026-03-17T12:00", ""),
    ("the call yesterday evening", "2026-03-17T17:00", "2026-03-18", "the call"),
    ("the incident last night", "2026-03-17T18:00", "2026-03-18T06:00", "the incident"),
    ("late last night", "2026-03-17T18:00", "2026-03-18T06:00", ""),
    ("the night before last", "2026-03-16T18:00", "2026-03-17T06:00", ""),
    ("this morning's call", "2026-03-18T04:00", "2026-03-18T12:00", "call"),
    ("this afternoon", "2026-03-18T12:00", "2026-03-18T18:00", ""),
    ("on Monday evening we talked", "2026-03-16T17:00", "2026-03-17", "we talked"),
    ("Monday evening last week", "2026-03-09T17:00", "2026-03-10", ""),
    ("on the morning of March 3", "2026-03-03T04:00", "2026-03-03T12:00", ""),
    ("yesterday at 3pm", "2026-03-17T15:00", "2026-03-17T16:00", ""),
    ("yesterday 14:00", "2026-03-17T14:00", "2026-03-17T15:00", ""),
    ("yesterday 14:00 UTC", "2026-03-17T15:00", "2026-03-17T16:00", ""),
    ("last Friday at noon", "2026-03-13T12:00", "2026-03-13T13:00", ""),
    ("2 days ago", "2026-03-16", "2026-03-17", ""),
    ("two weeks ago", "2026-03-02", "2026-03-09", ""),
    ("2-3 weeks ago", "2026-02-23", "2026-03-09", ""),
    ("two or three days ago", "2026-03-15", "2026-03-17", ""),
    ("three months ago", "2025-12-01", "2026-01-01", ""),
    ("a year ago", "2025-01-01", "2026-01-01", ""),
    ("twenty-one days ago", "2026-02-25", "2026-02-26", ""),
    ("a fortnight ago", "2026-03-02", "2026-03-09", ""),
    ("5 hours ago", "2026-03-18T09:30", "2026-03-18T11:30", ""),
    ("5 minutes ago", "2026-03-18T15:22:30", "2026-03-18T15:27:30", ""),
    ("half an hour ago", "2026-03-18T14:45", "2026-03-18T15:15", ""),
    ("an hour and a half ago", "2026-03-18T13:15", "2026-03-18T14:45", ""),
    ("2.5 hours ago", "2026-03-18T12:00", "2026-03-18T14:00", ""),
    ("30 seconds ago", "2026-03-18T15:28:30", "2026-03-18T15:30:30", ""),
    ("2 days and 3 hours ago", "2026-03-15T11:30", "2026-03-15T13:30", ""),
    ("a couple of days ago", "2026-03-15", "2026-03-18", ""),
    ("a few weeks ago", "2026-02-16", "2026-03-09", ""),
    ("a few hours ago", "2026-03-18T09:30", "2026-03-18T14:30", ""),
    ("several days ago", "2026-03-11", "2026-03-16", ""),
    ("3 days back", "2026-03-15", "2026-03-16", ""),
    ("3 days from now", "2026-03-21", "2026-03-22", ""),
    ("what changed in the last 3 days", "2026-03-15", "2026-03-19", "what changed"),
    ("what changed over the past few days", "2026-03-15", "2026-03-19", "what changed"),
    ("errors in the last 24 hours", "2026-03-17T15:30", "2026-03-18T15:31", "errors"),
    ("errors in the last hour", "2026-03-18T14:30", "2026-03-18T15:31", "errors"),
    ("errors of the last 7d", "2026-03-11", "2026-03-19", "errors"),
    ("in the next 2 weeks", "2026-03-18", "2026-04-02", ""),
    ("within the last two months", "2026-01-18", "2026-03-19", ""),
    ("what we did in March", "2026-03-01", "2026-04-01", "what we did"),
    ("what we did in May", "2025-05-01", "2025-06-01", "what we did"),
    ("what we did last March", "2025-03-01", "2025-04-01", "what we did"),
    ("what we do next March", "2027-03-01", "2027-04-01", "what we do"),
    ("March 2024 report", "2024-03-01", "2024-04-01", "report"),
    ("March last year", "2025-03-01", "2025-04-01", ""),
    ("March of 2024", "2024-03-01", "2024-04-01", ""),
    ("in Nov", "2025-11-01", "2025-12-01", ""),
    ("early March", "2026-03-01", "2026-03-11", ""),
    ("mid-March", "2026-03-11", "2026-03-21", ""),
    ("late March 2025", "2025-03-21", "2025-04-01", ""),
    ("early in 2024", "2024-01-01", "2024-05-01", ""),
    ("beginning of the month", "2026-03-01", "2026-03-11", ""),
    ("at the end of last month", "2026-02-21", "2026-03-01", ""),
    ("end of last week", "2026-03-12", "2026-03-16", ""),
    ("early last week", "2026-03-09", "2026-03-12", ""),
    ("mid 2024", "2024-05-01", "2024-09-01", ""),
    ("the first week of March", "2026-03-01", "2026-03-08", ""),
    ("in the last week of February", "2026-02-22", "2026-03-01", ""),
    ("the last Friday of February", "2026-02-27", "2026-02-28", ""),
    ("the last day of last month", "2026-02-28", "2026-03-01", ""),
    ("the first half of 2024", "2024-01-01", "2024-07-01", ""),
    ("second half of last year", "2025-07-01", "2026-01-01", ""),
    ("in Q3", "2025-07-01", "2025-10-01", ""),
    ("Q3 2025 goals", "2025-07-01", "2025-10-01", "goals"),
    ("Q3 of last year", "2025-07-01", "2025-10-01", ""),
    ("2025-Q3", "2025-07-01", "2025-10-01", ""),
    ("third quarter of 2025", "2025-07-01", "2025-10-01", ""),
    ("last quarter of 2024", "2024-10-01", "2025-01-01", ""),
    ("last quarter", "2025-10-01", "2026-01-01", ""),
    ("H1 2024", "2024-01-01", "2024-07-01", ""),
    ("H1 of last year", "2025-01-01", "2025-07-01", ""),
    ("last summer", "2025-06-01", "2025-09-01", ""),
    ("summer of 2024", "2024-06-01", "2024-09-01", ""),
    ("in the summer", "2025-06-01", "2025-09-01", ""),
    ("last winter", "2025-12-01", "2026-03-01", ""),
    ("winter 2024", "2024-12-01", "2025-03-01", ""),
    ("spring of last year", "2025-03-01", "2025-06-01", ""),
    ("in 2023", "2023-01-01", "2024-01-01", ""),
    ("in 2020-2022", "2020-01-01", "2023-01-01", ""),
    ("during the year 2023", "2023-01-01", "2024-01-01", ""),
    ("in the 1990s", "1990-01-01", "2000-01-01", ""),
    ("before 2024", "-inf", "2024-01-01", ""),
    ("since Monday", "2026-03-16", "inf", ""),
    ("since 2024", "2024-01-01", "inf", ""),
    ("until last Friday", "-inf", "2026-03-14", ""),
    ("what happened after March", "2025-04-01", "inf", "what happened"),
    ("everything after 2025-03-01", "2025-03-02", "inf", "everything"),
    ("before yesterday", "-inf", "2026-03-17", ""),
    ("up to yesterday", "-inf", "2026-03-18", ""),
    ("from Monday on", "2026-03-16", "inf", ""),
    ("from March onwards", "2026-03-01", "inf", ""),
    ("more than two weeks ago", "-inf", "2026-03-09", ""),
    ("less than 2 hours ago", "2026-03-18T13:30", "inf", ""),
    ("over a year ago", "-inf", "2026-01-01", ""),
    ("between March and May", "2025-03-01", "2025-06-01", ""),
    ("between March and May 2024", "2024-03-01", "2024-06-01", ""),
    ("between 3 and 10 June", "2025-06-03", "2025-06-11", ""),
    ("from 3 June to 10 June", "2025-06-03", "2025-06-11", ""),
    ("from June 3 to 10 July", "2025-06-03", "2025-07-11", ""),
    ("June 3-10", "2025-06-03", "2025-06-11", ""),
    ("from Monday to Friday", "2026-03-09", "2026-03-14", ""),
    ("from November to January", "2025-11-01", "2026-02-01", ""),
    ("from last Monday to yesterday", "2026-03-16", "2026-03-18", ""),
    ("from Monday till now", "2026-03-16", "2026-03-18T15:30:01", ""),
    ("from 2020 to 2022", "2020-01-01", "2023-01-01", ""),
    ("2025-03-01 to 2025-03-05", "2025-03-01", "2025-03-06", ""),
    ("between 14:00 and 16:00 yesterday", "2026-03-17T14:00", "2026-03-17T16:01", ""),
    ("after 3 June and before 10 June", "2025-06-04", "2025-06-10", ""),
    ("Compare last week and this week", "2026-03-09", "2026-03-23", "Compare"),
    ("on Monday and Tuesday", "2026-03-16", "2026-03-18", ""),
    ("3 June 2025", "2025-06-03", "2025-06-04", ""),
    ("June 3rd", "2025-06-03", "2025-06-04", ""),
    ("June 3rd, 2025 at 5pm", "2025-06-03T17:00", "2025-06-03T18:00", ""),
    ("the 3rd of May", "2025-05-03", "2025-05-04", ""),
    ("on 3 May", "2025-05-03", "2025-05-04", ""),
    ("Tuesday, 3 June 2025", "2025-06-03", "2025-06-04", ""),
    ("on 3/6/2025", "2025-03-06", "2025-03-07", ""),
    ("on 13/6/2025", "2025-06-13", "2025-06-14", ""),
    ("on 3.6.2025", "2025-06-03", "2025-06-04", ""),
    ("the log of 2025-03-01", "2025-03-01", "2025-03-02", "the log"),
    ("2025/03/01", "2025-03-01", "2025-03-02", ""),
    ("2025-03-01T14:00:00Z", "2025-03-01T15:00", "2025-03-01T16:00", ""),
    ("2025-03-01 14:00", "2025-03-01T14:00", "2025-03-01T15:00", ""),
    ("2025-W10", "2025-03-03", "2025-03-10", ""),
    ("in 2025-03", "2025-03-01", "2025-04-01", ""),
    ("the day before yesterday", "2026-03-16", "2026-03-17", ""),
    ("the day after tomorrow", "2026-03-20", "2026-03-21", ""),
    ("the day before last Tuesday", "2026-03-16", "2026-03-17", ""),
    ("two days before 2025-03-03", "2025-03-01", "2025-03-02", ""),
    ("the week of June 3", "2025-06-02", "2025-06-09", ""),
    ("the week before last", "2026-03-02", "2026-03-09", ""),
    ("the month after next", "2026-05-01", "2026-06-01", ""),
    ("earlier today", "2026-03-18", "2026-03-19", ""),
    ("sometime last week", "2026-03-09", "2026-03-16", ""),
    (
        "what did we decide in yesterday's meeting",
        "2026-03-17",
        "2026-03-18",
        "what did we decide in meeting",
    ),
    ("since yesterday's deploy", "2026-03-17", "inf", "since deploy"),
    ("before last week's release", "-inf", "2026-03-16", "before release"),
    ("the notes (from last week) about auth", "2026-03-09", "2026-03-16", "the notes about auth"),
    ("Last week, what did we decide?", "2026-03-09", "2026-03-16", "what did we decide?"),
    ("In 2024, what did we say in March?", "2024-03-01", "2024-04-01", "what did we say?"),
    ("on 29 February", "2024-02-29", "2024-03-01", ""),
    ("LAST WEEK", "2026-03-09", "2026-03-16", ""),
    (
        "what did I say about Will and May last   week?",
        "2026-03-09",
        "2026-03-16",
        "what did I say about Will and May?",
    ),
]

NOT_A_TIME = [
    "I may go",
    "it may be late",
    "this may be wrong",
    "march forward",
    "the march on Washington",
    "the sun is out",
    "a spot on the sun",
    "on the sun's surface",
    "sun microsystems",
    "sat down",
    "since he last sat down",
    "the second option",
    "wait a second",
    "right now",
    "now what",
    "today's special",
    "today’s models",
    "python 2.7",
    "python 3.11",
    "since 3.11",
    "port 3000",
    "5 apples",
    "top 10",
    "issue #12",
    "Will called",
    "tests 3 may fail",
    "you may 5 times retry",
    "the 2024 budget",
    "version 2024.1",
    "in 2000 requests",
    "from 2000 to 3000",
    "in 1920 x 1080",
    "more than 2024 users",
    "every Monday",
    "each Friday evening",
    "due by Friday",
    "the h1 tag",
    "in h1",
    "H2 database",
    "spring boot upgrade",
    "in Spring",
    "fall back to sqlite",
    "recently",
    "what did we do lately",
    "the other day",
    "monday.com",
    "today()",
    "/logs/2024-03-01.txt",
    "v2024-03-01",
    "10.0.0.1",
    "127.0.0.1:8080",
    "call 555-1234",
    "what did April say",
    "ask June about it",
    "at 14:00",
    "in the morning",
    "good morning",
    "the next step",
    "the last commit",
    "last 5 commits",
    "the last 3d model",
    "the past tense",
    "in the past",
    "week after week",
    "in 2 weeks",
    "for 3 days",
    "takes 5 minutes",
    "16:9",
    "3/4 of users",
    "Q3: what is it",
    "black friday sale",
    "friday deploy rule",
    "on sunny days",
    "mon ami",
    "5k run",
    "2024",
    "may",
    "March",
    "last minute changes",
    "the next day",
    "the first quarter of the file",
    "1.2.3",
    "ISO 8601",
    "RFC 2822",
    "error 1999",
    "end of the file",
    "early return",
    "late binding",
    "one day",
    "the day after",
    "the week before",
    "24/7",
    "before lunch",
    "until done",
    "between 5 and 10",
    "from A to B",
    "minute details",
    "99999999 years ago",
    "999999999 weeks ago",
    "1,000 days ago",
    "2025-02-30",
    "in twenty years",
    "٢ weeks ago",
    "a while ago",
    "long ago",
    "",
    "   ",
]

PARSED: list[tuple[str, str, str]] = [
    ("2 weeks ago", "2026-03-02", "2026-03-09"),
    ("2025-03-01", "2025-03-01", "2025-03-02"),
    (" 2025-03-01 ", "2025-03-01", "2025-03-02"),
    ("20250301", "2025-03-01", "2025-03-02"),
    ("2024-02-29", "2024-02-29", "2024-03-01"),
    ("2025-03", "2025-03-01", "2025-04-01"),
    ("2023", "2023-01-01", "2024-01-01"),
    ("Q3 2025", "2025-07-01", "2025-10-01"),
    ("Q3", "2025-07-01", "2025-10-01"),
    ("March", "2026-03-01", "2026-04-01"),
    ("may", "2025-05-01", "2025-06-01"),
    ("monday", "2026-03-16", "2026-03-17"),
    ("on Monday", "2026-03-16", "2026-03-17"),
    ("last week", "2026-03-09", "2026-03-16"),
    ("yesterday", "2026-03-17", "2026-03-18"),
    ("yesterday 14:00", "2026-03-17T14:00", "2026-03-17T14:01"),
    ("yesterday at 3pm", "2026-03-17T15:00", "2026-03-17T15:01"),
    ("14:00", "2026-03-18T14:00", "2026-03-18T14:01"),
    ("18:00", "2026-03-17T18:00", "2026-03-17T18:01"),
    ("now", "2026-03-18T15:30", "2026-03-18T15:30:01"),
    ("2025-03-01T14:00", "2025-03-01T14:00", "2025-03-01T14:01"),
    ("2025-03-01T14:00:00", "2025-03-01T14:00", "2025-03-01T14:00:01"),
    ("2025-03-01T14:00:00Z", "2025-03-01T15:00", "2025-03-01T15:00:01"),
    ("2025-03-01T14:00:00+05:30", "2025-03-01T09:30", "2025-03-01T09:30:01"),
    ("2025-03-01T14:00:00-0800", "2025-03-01T23:00", "2025-03-01T23:00:01"),
    ("2025-03-01 14:00:00.5", "2025-03-01T14:00:00.5", "2025-03-01T14:00:00.6"),
    ("1767225600", "2026-01-01T01:00", "2026-01-01T01:00:01"),
    ("1767225600.5", "2026-01-01T01:00:00.5", "2026-01-01T01:00:00.6"),
    ("1767225600000", "2026-01-01T01:00", "2026-01-01T01:00:00.001"),
    ("0", "1970-01-01T01:00", "1970-01-01T01:00:01"),
    ("5 hours ago", "2026-03-18T10:30", "2026-03-18T10:30:01"),
    ("7d", "2026-03-11T15:30", "2026-03-11T15:30:01"),
    ("24h", "2026-03-17T15:30", "2026-03-17T15:30:01"),
    ("-2w", "2026-03-04T15:30", "2026-03-04T15:30:01"),
    ("3 weeks", "2026-02-25T15:30", "2026-02-25T15:30:01"),
    ("in 2 days", "2026-03-20T15:30", "2026-03-20T15:30:01"),
    ("since Monday", "2026-03-16", "inf"),
    ("before 2024", "-inf", "2024-01-01"),
    ("between March and May", "2025-03-01", "2025-06-01"),
    ("3/6/2025", "2025-03-06", "2025-03-07"),
    ("3/6/25", "2025-03-06", "2025-03-07"),
    ("Mon, 02 Mar 2026 10:00:00 +0100", "2026-03-02T10:00", "2026-03-02T10:00:01"),
    ("Mon Mar  2 10:00:00 2026", "2026-03-02T10:00", "2026-03-02T10:00:01"),
    ("June 3rd 2025 at 5 PM EST", "2025-06-04", "2025-06-04T00:00:01"),
    ("3 juin 2025", "2025-06-03", "2025-06-04"),
    ("3. Juni 2025", "2025-06-03", "2025-06-04"),
]

NOT_PARSED = [
    *("", "   ", "garbage", "12", "5 apples", "python 3.11", "3.11", "last week please", "the end", "early"),
    *(
        "99999999 years ago",
        "99999999d",
        "20251399",
        "2025-02-30",
        "2025-02-29",
        "9999",
        "9999-12-31",
        "0000",
    ),
    *("12/31/9999", "99/99/2025", "1.2.3", "12 may be 2020", "what we decided in March", "x" * 100_000),
    *("two", "recently", "1e9", "nan", "inf", "2025-03-01T25:00", "2025-03-01T14:00+99:99"),
]

# Complete dates as programs, mails, logs and people of seven languages write them, separated by "|".
WRITTEN: list[tuple[str, str]] = [
    (
        "2026-03-03",
        """
    2026-03-03 | 2026/03/03 | 2026.03.03 | 2026 03 03 | 20260303 | 3 March 2026 | 03 March 2026 | 3 Mar 2026 |
    03-Mar-2026 | 3-Mar-26 | 03/Mar/2026 | Mar 3 2026 | Mar 3, 2026 | Mar. 3, 2026 | March 3, 2026 |
    March 3rd, 2026 | March the 3rd 2026 | the 3rd of March 2026 | 3rd March 2026 | 3rd of March, 2026 |
    Tuesday, March 3, 2026 | Tuesday 3 March 2026 | Tue Mar 3 2026 | Tue, 3 Mar 2026 | Tue, Mar 3, 2026 |
    2026 March 3 | 2026-Mar-03 | 2026 Mar 3 | 03.03.2026 | 3.3.2026 | 3.3.26 | 03.03.26 | 3/3/2026 |
    03/03/2026 | 3/3/26 | 03-03-2026 | 3-3-26 | 3 . 3 . 2026 | 3. 3. 2026 | March 3 '26 | 3. März 2026 |
    03. März 2026 | 3 März 2026 | 3. Mrz 2026 | 3. Maerz 2026 | Dienstag, 3. März 2026 | Di, 3. März 2026 |
    Dienstag, den 3. März 2026 | am 3. März 2026 | den 3. März 2026 | 3 mars 2026 | le 3 mars 2026 |
    mardi 3 mars 2026 | mar. 3 mars 2026 | 3 de marzo de 2026 | 3 marzo 2026 | martes, 3 de marzo de 2026 |
    el 3 de marzo de 2026 | 3 de marzo del 2026 | martedì 3 marzo 2026 | il 3 marzo 2026 | 3 de março de 2026 |
    terça-feira, 3 de março de 2026 | 3 março 2026 | 3 maart 2026 | dinsdag 3 maart 2026 | op 3 maart 2026 |
    3 mrt 2026 | 3 MARCH 2026 | MARCH 3, 2026 | 3 march 2026 | March 03 2026
        """,
    ),
    (
        "2026-03-03T14:05:09",
        """
    2026-03-03T14:05:09 | 2026-03-03 14:05:09 | 2026-03-03T14:05:09+01:00 | 2026-03-03T14:05:09+0100 |
    2026-03-03T14:05:09+01 | 2026-03-03T13:05:09Z | 2026-03-03 13:05:09 UTC | 2026-03-03 14:05:09 +0100 |
    2026-03-03 14:05:09,000 | 2026-03-03T13:05:09.000Z | 20260303T140509 | 20260303T130509Z | 20260303140509 |
    2026/03/03 14:05:09 | 2026/03/03 14:05:09 +0100 | Tue, 03 Mar 2026 14:05:09 +0100 |
    Tue, 3 Mar 2026 13:05:09 GMT | Tue, 3 Mar 2026 08:05:09 -0500 (EST) | Tue, 3 Mar 2026 08:05:09 EST |
    3 Mar 2026 14:05:09 +0100 | Tuesday, 03-Mar-26 13:05:09 GMT | Tuesday, 03-Mar-2026 13:05:09 UTC |
    Tue Mar  3 14:05:09 2026 | Tue Mar 3 14:05:09 2026 +0100 | Tue Mar  3 14:05:09 CET 2026 |
    Tue Mar  3 13:05:09 UTC 2026 | Tue  3 Mar 14:05:09 CET 2026 |
    Tue Mar 03 2026 14:05:09 GMT+0100 (Central European Standard Time) | 03/Mar/2026:14:05:09 +0100 |
    03/Mar/2026:13:05:09 +0000 | Mar 3, 2026, 2:05:09 PM | 3/3/2026, 2:05:09 PM | 3/3/2026 2:05:09 PM |
    3.3.2026, 14:05:09 | 03.03.2026 14:05:09 | 03/03/2026, 14:05:09 | March 3, 2026 at 2:05:09 PM GMT+1 |
    Mar 03, 2026 14:05:09 CET | 2026-03-03 14:05:09 CET | 3 March 2026 14:05:09 | March 3, 2026 14:05:09 |
    3. März 2026 um 14:05:09 | Mar 3 2026 14:05:09 | 2026-03-03 02:05:09 PM | 2026-03-03_14:05:09 |
    3-Mar-2026 14:05:09 | 2026-03-03T05:05:09 PST | Tue 03 Mar 2026 02:05:09 PM CET |
    Tue 2026-03-03 14:05:09 CET | 03-03-2026 14:05:09
        """,
    ),
    (
        "2026-03-03T14:05",
        """
    2026-03-03 14:05 | 2026-03-03T14:05+01:00 | March 3, 2026 2:05 PM | March 3, 2026 at 2:05 PM |
    March 3rd 2026, 2:05pm | 3 March 2026 at 14:05 | 3 Mar 2026, 14:05 | 14:05 3 March 2026 |
    14:05, 3 March 2026 | 14:05 on 3 March 2026 | 2:05 PM, March 3, 2026 | 3/3/2026 2:05 PM | 3/3/26 14:05 |
    3/3/26, 2:05 PM | 03.03.2026 14:05 | 03.03.2026, 14:05 Uhr | 03.03.2026 um 14:05 Uhr |
    3. März 2026, 14:05 Uhr | 3. März 2026 um 14:05 Uhr | Dienstag, 3. März 2026 um 14:05 |
    3 mars 2026 à 14:05 | 3 mars 2026 à 14h05 | 3 mars 2026 14h05 | mardi 3 mars 2026 à 14:05 |
    3 de marzo de 2026, 14:05 | 3 de marzo de 2026 a las 14:05 | 3 marzo 2026 alle 14:05 |
    3 marzo 2026, ore 14:05 | 3 de março de 2026 às 14:05 | 3 maart 2026 om 14:05 | 3 maart 2026 14:05 |
    Tue, Mar 3, 2026 at 2:05 PM | Tuesday, March 3, 2026 2:05 PM CET | March 3 2026 8:05 AM EST |
    March 3 2026 5:05am PST | On Tue, Mar 3, 2026 at 2:05 PM | 2026-03-03 2:05 pm | 2026.03.03 14:05
        """,
    ),
    (
        "2026-03-01",
        """
    2026-03 | March 2026 | Mar 2026 | mars 2026 | März 2026 | marzo de 2026 | marzo 2026 | março de 2026 |
    maart 2026 | 2026 March | 03/2026
        """,
    ),
    (
        "1999-12-25",
        """
    25.12.99
        """,
    ),
    (
        "1999-12-31",
        """
    12/31/1999 | 1999-12-31
        """,
    ),
    (
        "2024-01-01",
        """
    1 January 2024 | 1er janvier 2024 | 1. Januar 2024 | 1. Jänner 2024 | 1 de enero de 2024 | 1 gennaio 2024 |
    1º gennaio 2024 | 1 de janeiro de 2024 | 1º de janeiro de 2024 | 1 januari 2024
        """,
    ),
    (
        "2025-02-14",
        """
    14 février 2025 | 14 fév. 2025 | 14 févr. 2025 | 14. Februar 2025 | 14 de febrero de 2025 |
    14 febbraio 2025 | 14 de fevereiro de 2025 | 14 februari 2025
        """,
    ),
    (
        "2025-04-09",
        """
    9 avril 2025 | 9. April 2025 | 9 de abril de 2025 | 9 aprile 2025
        """,
    ),
    (
        "2025-05-09",
        """
    9 mai 2025 | 9. Mai 2025 | 9 de mayo de 2025 | 9 maggio 2025 | 9 de maio de 2025 | 9 mei 2025
        """,
    ),
    (
        "2025-06-03",
        """
    3 juin 2025 | 3. Juni 2025 | 3 de junio de 2025 | 3 giugno 2025 | 3 de junho de 2025 | 3 juni 2025
        """,
    ),
    (
        "2025-06-13",
        """
    13/06/2025 | 13/06/25 | 06/13/25 | 13-06-2025 | 13.06.25
        """,
    ),
    (
        "2025-07-14",
        """
    14 juillet 2025 | 14. Juli 2025 | 14 de julio de 2025 | 14 luglio 2025 | 14 de julho de 2025 |
    14 juli 2025
        """,
    ),
    (
        "2025-08-15",
        """
    15 août 2025 | 15 aout 2025 | 15. August 2025 | 15 de agosto de 2025 | 15 agosto 2025 | 15 augustus 2025
        """,
    ),
    (
        "2025-09-02",
        """
    2 septembre 2025 | 2. September 2025 | 2 de septiembre de 2025 | 2 de setiembre de 2025 |
    2 settembre 2025 | 2 de setembro de 2025 | 2 sept 2025
        """,
    ),
    (
        "2025-10-03",
        """
    3 octobre 2025 | 3. Oktober 2025 | 3 de octubre de 2025 | 3 ottobre 2025 | 3 de outubro de 2025 |
    3 oktober 2025 | 3. Okt. 2025
        """,
    ),
    (
        "2025-11-11",
        """
    11 novembre 2025 | 11. November 2025 | 11 de noviembre de 2025 | 11 de novembro de 2025 |
    11 november 2025
        """,
    ),
    (
        "2025-12-24",
        """
    24 décembre 2025 | 24. Dezember 2025 | 24. Dez 2025 | 24 de diciembre de 2025 | 24 dicembre 2025 |
    24 de dezembro de 2025 | 24 december 2025 | 24 déc. 2025
        """,
    ),
]
NOT_WRITTEN = """
    3.11 | 1.2.3 | v1.2.3 | 1.2.3.4 | 10.0.0.1 | 192.168.1.1 | 127.0.0.1:8080 | python 3.11 | 2026-02-30 |
    30 février 2025 | 31. April 2025 | 99/99/2025 | 13/13/2025 | 12/31/9999 | issue 2026 | PR 2026 03 |
    room 3 March 2026 floor | 3 March 2026 or so | 1-800-555-1234 | 555-1234 | 2026-03-03T25:00 |
    2026-03-03T14:00+99:99 | 3/3 | 14:05:09:11 | ISO 8601 | RFC 2822 | version 2026.3.1 | 2026.3 | 0x2026 |
    2026% | 1,234,567 | 12.5.7 | 1.10.25.3 | 3 foo 2026 | mars | le 3 | 2026-03-03 2026-03-04 |
    3 March 2026 4 April 2026 | 14:05 15:05 3 March 2026 | 00/00/2026 | March 2026 2025 | April 31 2025
"""

VOCABULARY = (
    "last this next past previous in on at since until before after between from to and of the a few couple "
    "half early mid mid- late end beginning first second week weekend month quarter year day hour minute "
    "decade ago back monday tue sat sun march may june feb spring winter morning night noon today yesterday "
    "tomorrow now q3 h1 2024 1999-12-31 2024-02-29 29 31 0 1 12 99999999 999999999 14:00 3pm 25:61 "
    "9999-12-31 1/1/2024 's , ? ( ) - . or onwards"
)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Australia/Lord_Howe",
)

moments = st.builds(
    lambda moment, zone: moment.astimezone(ZoneInfo(zone)),
    st.datetimes(datetime(1971, 1, 1), datetime(2099, 12, 31), timezones=st.just(UTC)),
    st.sampled_from(ZONES),
)
sentences = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from(VOCABULARY.split()), max_size=12).map(" ".join),
    st.sampled_from(FOUND).map(lambda row: row[0]),
)


def epoch(text: str, zone: ZoneInfo = BERLIN) -> float:
    if text.endswith("inf"):
        return float(text)
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def period(start: str, end: str, zone: ZoneInfo = BERLIN) -> Period:
    return Period(epoch(start, zone), epoch(end, zone))


@pytest.mark.parametrize(("text", "start", "end", "rest"), FOUND)
def test_sentence_yields_period(text: str, start: str, end: str, rest: str) -> None:
    phrase = find_phrase(text, NOW)
    assert phrase is not None
    assert phrase.period == period(start, end)
    assert phrase.rest == rest


@pytest.mark.parametrize("text", NOT_A_TIME)
def test_ordinary_words_are_no_time(text: str) -> None:
    assert find_phrase(text, NOW) is None


@pytest.mark.parametrize(("text", "start", "end"), PARSED)
def test_bare_time_is_parsed_exactly(text: str, start: str, end: str) -> None:
    found, expected = parse_period(text, NOW), period(start, end)
    assert found.start == pytest.approx(expected.start, abs=1e-6)
    assert found.end == pytest.approx(expected.end, abs=1e-6)
    assert found.start < found.end


@pytest.mark.parametrize(("start", "texts"), WRITTEN)
def test_written_date_is_parsed(start: str, texts: str) -> None:
    assert texts
    for text in texts.split("|"):
        assert parse_period(text, NOW).start == epoch(start), text


@pytest.mark.parametrize("text", NOT_WRITTEN.split("|"))
def test_date_like_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_period(text, NOW)


@pytest.mark.parametrize("text", NOT_PARSED)
def test_invalid_time_error_has_examples(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_period(text, NOW)
    assert repr(text.strip()[:80])[:-1] in str(error.value)
    assert error.value.hint
    assert "2 weeks ago" in error.value.hint


def test_matched_words_are_returned() -> None:
    def words(text: str) -> str | None:
        phrase = find_phrase(text, NOW)
        return phrase.matched_text if phrase else None

    assert words("what did we decide in March about auth?") == "March"
    assert words("what changed Since Monday?") == "Since Monday"
    assert words("all between March and May please") == "between March and May"
    assert words("In 2024, what did we say in March?") == "2024 March"


def test_more_specific_time_wins() -> None:
    phrase = find_phrase("did the plan for 2025-06-03 come up last week?", NOW)
    assert phrase is not None
    assert phrase.period == period("2025-06-03", "2025-06-04")
    assert phrase.rest == "did the plan come up last week?"


@pytest.mark.parametrize(
    ("now", "text", "start", "end"),
    [
        ("2026-01-15", "last month", "2025-12-01", "2026-01-01"),
        ("2026-01-15", "last quarter", "2025-10-01", "2026-01-01"),
        ("2026-12-15", "next month", "2027-01-01", "2027-02-01"),
        ("2026-12-15", "next quarter", "2027-01-01", "2027-04-01"),
        ("2026-01-01", "last week", "2025-12-22", "2025-12-29"),
        ("2026-01-01", "yesterday", "2025-12-31", "2026-01-01"),
        ("2024-02-29", "last year", "2023-01-01", "2024-01-01"),
        ("2024-02-29", "in the last year", "2023-02-28", "2024-03-01"),
        ("2024-02-29", "a year ago", "2023-01-01", "2024-01-01"),
        ("2024-03-31", "in the last month", "2024-02-29", "2024-04-01"),
        ("2024-03-31", "one month ago", "2024-02-01", "2024-03-01"),
        ("2026-01-15", "this winter", "2025-12-01", "2026-03-01"),
        ("2026-11-15", "this winter", "2026-12-01", "2027-03-01"),
        ("2026-03-15", "last weekend", "2026-03-07", "2026-03-09"),
        ("2026-03-15", "this weekend", "2026-03-14", "2026-03-16"),
        ("2026-03-15", "over the weekend", "2026-03-14", "2026-03-16"),
        ("2026-03-16", "last weekend", "2026-03-14", "2026-03-16"),
        ("2026-03-30", "yesterday", "2026-03-29", "2026-03-30"),  # 23 hours long
        ("2026-10-26", "yesterday", "2026-10-25", "2026-10-26"),  # 25 hours long
        ("2026-10-25", "last week", "2026-10-12", "2026-10-19"),
        ("2026-10-30", "last week", "2026-10-19", "2026-10-26"),
    ],
)
def test_calendar_wraps_around(now: str, text: str, start: str, end: str) -> None:
    phrase = find_phrase(text, datetime.fromisoformat(now).replace(hour=12, tzinfo=BERLIN))
    assert phrase is not None
    assert phrase.period == period(start, end)


def test_hours_respect_dst_change() -> None:
    now = datetime(2026, 3, 29, 5, 0, tzinfo=BERLIN)
    assert parse_period("3 hours ago", now).start == now.timestamp() - 3 * 3600
    autumn = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
    assert parse_period("1 hour ago", autumn).start == autumn.timestamp() - 3600


def test_period_uses_timezone_of_now() -> None:
    tokyo = NOW.astimezone(ZoneInfo("Asia/Tokyo"))
    assert parse_period("today", tokyo) == period("2026-03-18", "2026-03-19", ZoneInfo("Asia/Tokyo"))
    assert parse_period("2025-03-01T14:00:00Z", tokyo) == parse_period("2025-03-01T14:00:00Z", NOW)


def test_only_start_of_text_is_read() -> None:
    assert find_phrase("word " * 1_000 + "last week", NOW) is None
    tail = "word " * 20_000
    phrase = find_phrase(f"last week {tail}", NOW)
    assert phrase is not None
    assert phrase.rest == tail.strip()


@settings(deadline=None)
@given(sentences, moments)
def test_any_text_is_searched_safely(text: str, now: datetime) -> None:
    phrase = find_phrase(text, now)
    if phrase is None:
        return
    assert phrase.period.start <= phrase.period.end
    assert not math.isnan(phrase.period.start)
    assert len(phrase.rest) <= len(text) - len(phrase.matched_text) + 1
    assert not set(phrase.rest) - set(text) - {" "}


@settings(deadline=None)
@given(sentences, moments)
def test_any_text_parses_or_raises(text: str, now: datetime) -> None:
    try:
        found = parse_period(text, now)
    except InvalidInput:
        return
    assert found.start <= found.end


@settings(deadline=None)
@given(st.dates(date(1971, 1, 1), date(2099, 12, 30)), st.sampled_from(ZONES))
def test_date_covers_local_day(day: date, name: str) -> None:
    zone = ZoneInfo(name)
    start, end = parse_period(day.isoformat(), NOW.astimezone(zone))

    def day_at(moment: float) -> date:
        return datetime.fromtimestamp(moment, zone).date()

    assert [day_at(start - 1), day_at(start), day_at(end - 1), day_at(end)] == [
        day - timedelta(days=1),
        day,
        day,
        day + timedelta(days=1),
    ]


@settings(deadline=None)
@given(moments, st.integers(0, 400))
def test_days_ago_matches_date(now: datetime, days: int) -> None:
    day = now.date() - timedelta(days=days)
    assert parse_period(f"{days} days ago", now) == parse_period(day.isoformat(), now)


def _seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    return min(once() for _ in range(5))


@pytest.mark.parametrize(
    "unit",
    [
        "last ",
        "2 weeks and ",
        "a couple of ",
        "from 3 to ",
        "2024-03-01 ",
        "may ",
        "early ",
        "1 ",
        " ",
        "(",
        "9",
    ],
)
def test_parse_time_is_linear(unit: str) -> None:
    def text(size: int) -> str:
        return (unit * size)[:size]

    find_phrase("warm up on Monday", NOW)
    for size in (1_000, 100_000):

        def in_proportion(size: int = size) -> bool:
            once, twice = (_seconds(lambda n=n: find_phrase(text(n), NOW)) for n in (size, 2 * size))  # type: ignore[misc]
            # Twice the text may take twice as long; the rest is tolerance for a busy machine.
            return twice < 3.5 * once + 0.005

        assert succeeds_once(in_proportion)
