"""Word tables of tool search: everyday words for tools, and phrases, short requests with which people ask for a tool.

Our own operations declare their phrases (`asks`). `phrases.txt` has those for other servers' tools, matched by the
words of a tool's name and category; a verb also matches its synonyms. Of the terms that match, only those count that
cover most of the name: "create issue comment" before "create issue".
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from athena.core.words import stem_words
from athena.discovery.entry import ToolEntry, split_name
from athena.programs.values import KeptSkill

THESAURUS_LINES = """
create, add, new, insert, append, log = make, open, start, set up, put, write, register, enter, file, raise
create, add, new, insert, append, log = note down, jot down, introduce, offer, begin
delete, remove, forget = call off, cancel, kill, unwanted, destroy, erase, drop, get rid of, throw away, trash
delete, remove, forget = clear, wipe, discard
update, edit, modify, set, change = overwrite, wrong, typo, shift, reassign, raise, close, assign, improve, change
update, edit, modify, set, change = alter, adjust, correct, fix, revise, replace, rename, mark
list = show, all, overview, display, every, exist, there, so far, have, available, latest, newest
get, retrieve, read, fetch, return = say, says, contents, full text, details, show, look at, open, view, see
get, retrieve, read, fetch, return = display, pull, check, give me
search, find, query = somebody, already, popular, called, exists, look for, look up, locate, hunt, any
search, find, query = anything about, look through, grep
send, post = tell, notify, deliver, let know, announce, inform
share, permissions = give, grant, access, allow, rights
cancel, stop = end, shut down, halt, turn off, quit
start = boot, launch, bring up, begin
run, execute, invoke, call = run, trigger, launch, use
merge = join, combine, unify, land, one
move = rename, relocate, put
copy, fork = copy, duplicate, clone
upload = put, add, attach, backup, send up
download = save, export, store
accept, decline, respond = refuse, say yes, say no, reply, rsvp, attend
draft = prepare, not send, unsent
schedule = later, tomorrow, future
scale = copies, more, fewer, instances, grow, shrink
restart = bounce, reboot, reload, cycle
retry = again, rerun, once more, repeat
rollback, roll back, rollout undo = go back, previous, revert, broken
install = set up, deploy, add
pull image = get newest, registry, latest version, download
evaluate javascript = run, script, code, expression, page
snapshot = seen, visible, structure, elements, accessibility
go back = return, before, previous
describe = columns, fields, structure, explain
convert = turn into, change, what is that in
wait = until, hold on, appear
mute = silence, quiet, maintenance, snooze, suppress
acknowledge = saw, ack, looking into, taking
approve, review = looks good, lgtm, agree, sign off, feedback

email, gmail = mail, inbox, message, correspondence, letter, unread, write to
filter email = automatically, rule, newsletters, archive
attachment = attached file, enclosed
label email = folder, move, archive, inbox
calendar, calendar event = lunch, dinner, guests, meeting, appointment, agenda, diary, schedule
calendar, calendar event = invitation, booking, date
calendar list event = agenda, what is on, plans, today, tomorrow, week
update calendar = reschedule, postpone, push back, shift, later, earlier
freebusy, free busy = free, available, availability, busy, slot
issue = report, reported, case, severity, priority, owner, who has it, bug, ticket, defect, problem, story, task
issue = work item, report, feature request
pull request, merge request = PR, MR, review, proposed changes, patch, branch
comment, note, reply = remark, answer, respond, discussion, feedback
repository = repo, project, codebase, source, library, libraries, open source, package
star = bookmark, favourite, like
file repository = file on the branch, overwrite, commit
commit = changes, who changed, latest work
workflow, pipeline, job = CI, build, actions, checks, runner
status checks = green, passing, failed, CI
log, logs, output, trace = output, console, printed, wrote, lines, said, print
release = version, ship, publish, change notes, changelog
dependabot, code scanning = vulnerabilities, security, dependencies, packages
transition = move, status, in progress, done, state
worklog = hours, time spent, book time, worked
sprint, cycle = iteration, current work, scrum
epic = parent, big story
confluence, wiki, notion = wiki, documentation, docs, page, write up, knowledge base
notion database = table, rows, tracker, columns
block children append = paragraph, add text, section
slack, channel = chat, conversation, team, colleagues, room, people
channel history = recent messages, saying, said, catch up
reaction = emoji, thumbs up, like, react
status emoji = away, busy, vacation
user, users, profile = job title, phone number, contact details, people, person, colleague, member, who, everyone
user, users, profile = names, staff
assigned, user issue = my, mine, for me

file = document
write file, new file = save, text, on my computer, disk, store, keep
filesystem = computer, disk, laptop, local, machine, folder, directory
list directory = what is in, contents, folder, documents, downloads
media, image file = picture, photo, sound, audio
spreadsheet, gsheets, sheet = field, cell, value, google sheet, sheet, budget, numbers, cells, rows, columns, excel
spreadsheet, gsheets, sheet = table
directory, folder = folder, structure
tree = whole structure, nested, all subfolders, hierarchy
search files = pattern, glob, subfolders
file info, metadata = size, how big, when changed, modified, permissions
multiple files = several files, at once, compare
drive = cloud, google, document

navigate = go to, open, visit, website, site, address
browser = page, web page, site, website, tab
click = press, tap, push, button, hit
type, type text, fill form = enter, write, input, field, complete, box, hit return, search box, password, user name
screenshot = image, picture, looks, photo, capture
console messages = javascript errors, warnings
network requests = API calls, traffic, loaded
select option dropdown = choose, pick, menu
file upload = attach, file input, choose file
save pdf = document, print
web search = google, internet, news, latest, online, look up
fetch url = download, link, article, page, website, text of

customer = client, buyer, shopper, account
product = item, goods, article, sell, sale, merchandise, catalogue
price = charge, dollars, euros, month, tier, fee, rate, cost
finalize = complete, official, final, close
incident = down, wake up, emergency, responsible, escalate, urgent, outage
contact = lead, person, prospect, customer
hubspot, crm = CRM, sales, lead, prospect
deal = opportunity, sale, stage, won, lost
engagement = phoned, called, met, talked, note down, conversation
invoice = bill, charge, payable, owe
refund = money back, give back, return, reimburse
subscription = plan, membership, monthly, billed, recurring
payment link = pay, checkout, URL, buy
coupon = discount, percent off, promo, code, voucher, sale
balance = money, funds, account, how much
dispute = charged back, complain, contested, fraud
shop, shopify, store product = web shop, online shop, sell, store, mugs, goods
order = purchase, bought, sold, arrived, parcel
inventory, stock = stock, warehouse, received, quantity, items left
fulfill, shipped = parcel, tracking, sent out, package, delivery
support ticket, zendesk = case, solved, agent, customer, complaint, complaining, request, help desk
sms, text message = text, mobile, phone, short message
phone call = ring, dial, phone, aloud

weather = rain, sun, umbrella, hot, cold, snow, wind, outside
forecast = next days, tomorrow, week, coming
weather alerts = warning, storm, flood, hurricane, tornado
air quality = pollution, polluted, smog, dust
directions = route, way, get from, travel, bus, train, public transport, drive
geocode = coordinates, latitude, longitude, position, where is
reverse geocode = street, which address
search places = restaurant, shop, cafe, near, nearby, good
distance = far, how long, travel time
elevation = height, high, altitude, sea level
timezone = time difference, o'clock, what time
track, music, playback = song, listen, tune, music, jazz, rock, artist, band, album
play = put on, hear, start
queue playback = play after, next, up next, line up
playlist tracks = songs, list, mix
pause playback = stop music, silence, hold
skip next = after, next song, another, go on
volume = louder, quieter, loud, quiet, sound
playlist = mix, songs, collection, compilation
light = lamp, bulb, dim, dimmer, bright, warm
climate, target temperature = heating, thermostat, degrees, warmer, cooler, air conditioning
cover, blinds = shutter, curtain, sun
turn on = switch on, open
turn off = switch off, close
vacuum = hoover, clean, robot, floor, sweep
current state devices = open, closed, now, door, window, is it
smart home, homeassistant = house, home, room, kitchen, bedroom, living room, garage
history = past, before, earlier, was, previously, old version

sql query, sql, select = how many, count, rows, data, table, warehouse, report, sum
insert update delete = set, change rows, write data
database table = columns, fields
explain plan = slow, index, why, performance
slowest = slow, expensive, most time, heavy
database health = vacuum, bloat, replicas, connections
redis, key value = cache, cached, session, entry
expiration = minutes, temporary, ttl
record = row, entry, line
pod, kubernetes = cluster, k8s, crash
resource consumption, top = memory, cpu, most, usage
kubernetes resource = apply, manifest, yaml
exec, command = inside, shell, run
docker, container = machine, image
compose = all services, stack
bucket, object s3 = file, upload, storage, blob
presigned = temporary link, download
ec2, instance = virtual machine, server, VM, computer
lambda = function, serverless
queue = job, background, worker, enqueue
cost = spend, spent, bill, expenses, money
secret = password, credential, vault, API key
metric = graph, measure, latency, load, chart
error, exception, sentry = crash, bug, stack trace, failure, production
resolved = fixed, done, close
root cause = why, patch, cause
apm trace = spans, slow
monitor, incident = alarm, alert, outage, page
oncall, on call = pager, duty, shift
figma, design = mock-up, mockup, layout, prototype, designers
styles variables = colours, colors, fonts, spacing
images icons = icons, pictures, SVG, export

remember, keep = note, fact, keep in mind, write down, save, store, learn, do not forget
recall = know, remember, remind, told, knowledge, what about
memory, memories = note, notes, fact, facts, remembered, told you
restore, bring back = undelete, by mistake, recover, deleted
undo, take back = mistake, revert, back
relate = link, connect, belong, each other
duplicates, nearly same = twice, same thing, repeated, redundant
purge, for good = permanently, nothing left, disk, erase
list memories = latest, newest, recent, last notes, my notes
get memory = full text, whole note, number, id
update memory = wrong, correct, now, no longer, changed
search tag, memories tag = filed under, everything about, label
batch, many, several = together, in one go, at once, fifty, all these, bulk
mention, mentions = come up, appears, named, name, occurs
tag, tags = label, labels, category, keyword
record event, happened = write down, failed, succeeded, occurred, went wrong
recall events = what happened, went wrong
session = conversation, recap, chat, chats, talks
sum up, summary = recap, short version, what happened
timeline = chronological, in order
entity, entities, node = person, people, thing, knowledge graph
path, way between = connected, connection, how is, link
neighbors, related = connected, connection, around
observations = fact, detail, property
whole graph = dump, complete, everything, export
update task = deadline, shift, postpone, move, reschedule, due
task = deadline, to-do, todo, reminder, remind, goal, chore
complete task = done, finished, tick off, check off
overdue, due = late, deadline, this week, must, urgent
consolidate, patterns = learn, tidy up, recurring, habits, spot
consolidation status, last ran = when, last time, clean-up
document = handbook, manual, file, taken in, ingested, uploaded, text, book, paper
ingest, document pieces = import, make searchable, index, PDF, load
find skills = reusable, which functions, have, available
skill = source, recipe, function, reusable, again, procedure
workspace = result, between runs, intermediate, json
describe tool, called parameters = how, arguments, signature, usage, use, help, take
execute code, python program = script, snippet
run of program = state, waits, approval, finished
tokens = save, cost, context
verify, damage = integrity, corrupt, broken, check
health, works = ok, well, up, status
expertise, covered = know well, gaps, topics, knowledge, weak
"""


# verbs with which tools name the same action
VERB_GROUPS = (
    "create add new insert append make",
    "get read retrieve fetch show view describe return open",
    "search find query lookup",
    "update edit modify change set adjust",
    "delete remove",
    "list",
    "send post",
    "start run launch",
    "stop pause",
    "reply respond",
    "upload put",
    "download",
)


class _PhraseLine(NamedTuple):
    stems: frozenset[str]
    requests: tuple[str, ...]


def find_phrases(entry: ToolEntry) -> tuple[str, ...]:
    """Return the phrases of a tool; none for skills and unknown tools."""
    if isinstance(entry.target, KeptSkill):
        return ()
    if not entry.target.is_foreign:
        return tuple(entry.target.asks.split("; ")) if entry.target.asks else ()
    return _find_foreign_phrases(entry)


@lru_cache(maxsize=4_096)
def _find_foreign_phrases(entry: ToolEntry) -> tuple[str, ...]:
    name = frozenset(stem_words(split_name(entry.name)))
    synonyms = _map_verbs()
    verbs = name & synonyms.keys() or frozenset(stem_words(entry.summary)[:1]) & synonyms.keys()
    name_stems = name - synonyms.keys() | {synonyms[verb] for verb in verbs}
    stems = name_stems | frozenset(stem_words(split_name(entry.category))) - synonyms.keys()
    matches = [(len(line.stems & name_stems), line.requests) for line in _load_phrases() if line.stems <= stems]
    most = max((count for count, _ in matches), default=0)
    return tuple(dict.fromkeys(request for count, requests in matches if count == most for request in requests))


@cache
def _map_verbs() -> dict[str, str]:
    """Map the stem of each verb to the first verb of its group."""
    return {stem: group.split()[0] for group in VERB_GROUPS for stem in stem_words(group)}


@cache
def _load_phrases() -> list[_PhraseLine]:
    """Read the requests for tools of other servers."""
    return [
        _PhraseLine(frozenset(_map_verbs().get(stem, stem) for stem in stem_words(term)), requests)
        for terms, requests in _parse_phrases(Path(__file__).with_name("phrases.txt").read_text("utf-8"))
        for term in terms.split(", ")
    ]


def _parse_phrases(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the terms and the requests of each block of the file."""
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(" "):
            blocks[-1][1].append(line.strip())
        elif line and not line.startswith("#"):
            blocks.append((line, []))
    return [(terms, tuple(" ".join(parts).split("; "))) for terms, parts in blocks]
