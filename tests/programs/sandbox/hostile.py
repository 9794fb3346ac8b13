"""Programs that try to escape or to exhaust the machine, as data.

Each says what containment means for it: F it must fail; N it must fail or find nothing (a false value); L it must be
stopped by a limit; H it may end as it likes. None may reach a canary, outlive its limits or disturb the next run.
`both`, `monty` and `python` say where it runs.
"""

from typing import NamedTuple


class Hostile(NamedTuple):
    name: str
    where: str
    kind: str
    code: str


_TABLE = r"""
== read passwd | both F
open('/etc/passwd').read()
== read through pathlib | both F
from pathlib import Path
Path('/etc/passwd').read_text()
== read the canary file | both F
open('CANARY').read()
== write a file | both F
with open('/tmp/athena-escaped', 'w') as f:
    f.write('x')
== write beside the worker | both F
open('athena-escaped', 'w').write('x')
== append to a file | both F
open('/tmp/athena-escaped', 'a').write('x')
== list the root | both F
import os
os.listdir('/')
== list the home | both F
import os
os.listdir(os.path.expanduser('~'))
== walk everything | both N
import os
[p for p, d, f in os.walk('/') if f]
== make a folder | both F
import os
os.mkdir('/tmp/athena-escaped-dir')
== remove a file | both F
import os
os.remove('CANARY')
== rename a file | python F
import os
os.rename('CANARY', 'CANARY.gone')
== symlink | python F
import os
os.symlink('/etc/passwd', '/tmp/athena-escaped-link')
== chmod | python F
import os
os.chmod('CANARY', 0o777)
== chroot | python F
import os
os.chroot('/tmp')
== open by number | python N
import os
found = []
for n in range(3, 64):
    try:
        found.append(os.read(n, 10))
    except OSError:
        pass
found
== proc self environ | both F
open('/proc/self/environ').read()
== proc of the parent | python F
import os
open('/proc/PARENT/environ').read()
== proc self mem | python F
open('/proc/self/mem', 'rb').read(10)
== list proc | both F
import os
os.listdir('/proc')
== devices | both N
found = []
for p in ('/dev/mem', '/dev/sda', '/dev/kmsg', '/dev/null', '/dev/tty', '/dev/shm/x'):
    try:
        open(p, 'rb')
        found.append(p)
    except Exception:
        pass
found
== path tricks | both F
open('/usr/lib/../../etc/passwd').read()
== path tricks with zero bytes | both F
open('/etc/passwd\0.txt').read()
== a secret in the environment | both N
import os
os.environ.get('ATHENA_CANARY') or os.getenv('ATHENA_CANARY')
== all of the environment | python N
import os
[v for v in os.environ.values() if 'canary' in v]
== environment in bytes | python N
import os
[v for v in os.environb.values() if b'canary' in v]
== tcp | python F
import socket
socket.create_connection(('127.0.0.1', 80), 1)
== udp | python F
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))
== unix socket by path | python F
import socket
socket.socket(socket.AF_UNIX).connect('SOCKET')
== unix socket without a path | python F
import socket
socket.socket(socket.AF_UNIX).connect('\0athena-canary')
== socket pair | python F
import socket
socket.socketpair()
== raw socket | python F
import socket
socket.socket(socket.AF_INET, socket.SOCK_RAW)
== netlink | python F
import socket
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
== names of hosts | python F
import socket
socket.getaddrinfo('localhost', 80)
== http | both F
import urllib.request
urllib.request.urlopen('http://127.0.0.1:1/')
== listen | python F
import socket
socket.create_server(('127.0.0.1', 0))
== import socket on Monty | monty F
import socket
== fork | python F
import os
os.fork()
== fork bomb | python N
import os
made = []
for _ in range(2000):
    try:
        if os.fork() == 0:
            os._exit(0)
        made.append(1)
    except OSError:
        pass
made
== vfork through subprocess | python F
import subprocess
subprocess.run(['/bin/ls'])
== shell | python N
import os
os.system('touch /tmp/athena-escaped') == 0
== system on Monty | monty F
import os
os.system('touch /tmp/athena-escaped')
== exec | python F
import os
os.execv('/bin/sh', ['sh', '-c', 'id'])
== exec python again | python F
import os, sys
os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])
== exec by descriptor 1000 | python F
import os
os.execve(1000, ['x'], {})
== posix_spawn | python F
import os
os.posix_spawn('/bin/true', ['true'], {})
== multiprocessing | python F
import multiprocessing
p = multiprocessing.Process(target=print)
p.start()
== process pool | python F
from concurrent.futures import ProcessPoolExecutor
list(ProcessPoolExecutor(1).map(abs, [1]))
== threads | python F
import threading
threading.Thread(target=print).start()
== thread bomb | python N
import threading, time
made = []
for _ in range(500):
    try:
        t = threading.Thread(target=time.sleep, args=(9,)); t.start(); made.append(t)
    except RuntimeError:
        pass
len(made)
== pty | python F
import pty
pty.spawn('/bin/sh')
== kill the parent | python F
import os, signal
os.kill(PARENT, signal.SIGKILL)
== kill everybody | python F
import os, signal
os.kill(-1, signal.SIGKILL)
== kill by group | python F
import os, signal
os.killpg(PARENT, signal.SIGTERM)
== pidfd | python F
import os
os.pidfd_open(PARENT)
== signals through a descriptor's owner | python N
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
r, w = os.pipe()
libc.fcntl(r, 8, PARENT) == 0
== ignore every signal | python L
import signal
for s in range(1, 65):
    try:
        signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
== block every signal | python L
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    pass
== an alarm of one's own | python H
import signal
signal.signal(signal.SIGALRM, lambda *a: print('late'))
try:
    signal.alarm(1)
except Exception:
    pass
1
== ptrace | python N
import ctypes, os
ctypes.CDLL(None).ptrace(16, PARENT, 0, 0) == 0
== process_vm_readv | python N
import ctypes, os
libc = ctypes.CDLL(None)
buffer = ctypes.create_string_buffer(8)
libc.syscall(310, PARENT, ctypes.byref(buffer), 1, ctypes.byref(buffer), 1, 0) >= 0
== mount | python N
import ctypes
ctypes.CDLL(None).mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None) == 0
== unshare | python N
import ctypes
ctypes.CDLL(None).unshare(0x10000000) == 0
== setns | python N
import ctypes
ctypes.CDLL(None).setns(0, 0) == 0
== become root | python F
import os
os.setuid(0)
== capabilities | python N
import ctypes
libc = ctypes.CDLL(None)
libc.prctl(47, 2, 0, 0, 0) == 0
== prctl dumpable and names | python N
import ctypes
libc = ctypes.CDLL(None)
[n for n in (1, 4, 8, 22, 38) if libc.prctl(n, 1, 0, 0, 0) == 0]
== memory that can be executed | python N
import mmap
try:
    m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
except OSError:
    m = None
m is not None
== mprotect to executable | python N
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
p = libc.mmap(None, 4096, 3, 0x22, -1, 0)
libc.mprotect(ctypes.c_void_p(p), 4096, 5) == 0
== memfd | python F
import os
os.memfd_create('x')
== io_uring, bpf, perf, userfaultfd, keyctl | python N
import ctypes
libc = ctypes.CDLL(None)
[n for n in (425, 321, 298, 323, 250, 248, 310, 272, 165, 161, 175, 246, 169) if libc.syscall(n, 0, 0, 0, 0, 0) >= 0]
== the twins of every call | python L
import ctypes
ctypes.CDLL(None).syscall(0x40000000 + 57)
while True: pass
== raise the limits | python N
import resource
try:
    resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))
    ok = True
except (OSError, ValueError):
    ok = False
ok
== be nicer than allowed | python N
import os
try:
    os.nice(-10)
    ok = True
except OSError:
    ok = False
ok
== a null pointer | python L
import ctypes
ctypes.string_at(0)
== write over the interpreter | python H
import ctypes
ctypes.memset(id(None), 255, 64)
== end without a word | python L
import os
os._exit(0)
== abort | python L
import os
os.abort()
== subclasses of object | both N
try:
    r = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen' and c(['/bin/ls'])]
except Exception:
    r = []
r
== globals of a function | both N
def f(): pass
try:
    r = 'canary' in repr(f.__globals__)
except Exception:
    r = None
r
== frames of a traceback | both N
try:
    1 / 0
except Exception as e:
    try:
        f = e.__traceback__.tb_frame
        r = []
        while f:
            r += [k for k, v in f.f_globals.items() if 'canary' in str(v)[:200]]
            f = f.f_back
    except Exception:
        r = []
r
== frames of a generator | python N
def g(): yield 1
x = g()
'canary' in repr(x.gi_frame.f_back)
== inspect the stack | python N
import inspect
[f for f in inspect.stack() if 'canary' in repr(f.frame.f_globals.get('KEY', ''))]
== all objects | python N
import gc
[o for o in gc.get_objects() if isinstance(o, dict) and 'ATHENA_CANARY' in o]
== format string attributes | both N
class A: pass
try:
    r = 'canary' in '{0.__class__.__init__.__globals__}'.format(A())
except Exception:
    r = False
r
== __import__ | both N
try:
    r = __import__('os').environ.get('ATHENA_CANARY')
except Exception:
    r = None
r
== eval of an import | both N
try:
    r = eval("__import__('os').environ.get('ATHENA_CANARY')")
except Exception:
    r = None
r
== exec of a read | both F
exec("open('/etc/passwd').read()")
== builtins by name | both N
try:
    r = __builtins__
    r = r.open('/etc/passwd') if not isinstance(r, dict) else r['open']('/etc/passwd')
except Exception:
    r = None
r
== getattr with made-up names | both N
try:
    r = getattr(getattr((), '__cl' + 'ass__'), '__ba' + 'se__').__subclasses__()
    r = [c for c in r if 'warnings' in str(c) and c()._module.__builtins__['open']('/etc/passwd')]
except Exception:
    r = None
r
== sys.modules | python N
import sys
[m for m in sys.modules if m.startswith('athena')]
== a module of one's own | python H
import sys, types
sys.modules['os'] = types.ModuleType('os')
sys.modules['json'].dumps = lambda *a: 'x'
1
== an import hook | python H
import sys
sys.meta_path.insert(0, None)
sys.path.insert(0, '/tmp')
1
== installed packages | python F
import sys
sys.path += [p + '/site-packages' for p in sys.path if 'python3' in p]
__import__('pip')
== pickle | both N
import pickle
class E:
    def __reduce__(self):
        import os
        return (os.system, ('touch /tmp/athena-escaped',))
pickle.loads(pickle.dumps(E())) == 0
== codecs | python N
import codecs
try:
    r = codecs.open('/etc/passwd').read()
except OSError:
    r = None
r
== code objects by hand | python L
import types
code = (lambda: 0).__code__
bad = code.replace(co_code=b'\x64\xff' * 2000, co_stacksize=0)
types.FunctionType(bad, {})()
while True: pass
== ctypes on Monty | monty F
import ctypes
== audit and trace hooks | python H
import sys
sys.addaudithook(lambda *a: None)
sys.settrace(lambda *a: None)
1
== atexit | python H
import atexit, os
atexit.register(lambda: os.write(1, b'\0\0\0\2{}'))
1
== a finaliser that runs on | python H
class A:
    def __del__(self):
        while True: pass
a = A()
1
== loop for ever | both L
while True: pass
== loop that catches everything | both L
while True:
    try:
        while True: pass
    except BaseException:
        pass
== loop in a finally | both L
try:
    while True: pass
finally:
    while True: pass
== sum of much | both L
sum(range(10 ** 12))
== an endless iterator | both L
import itertools
max(itertools.count())
== in an endless iterator | both L
import itertools
-1 in itertools.count()
== a long power | both L
x = 3 ** (10 ** 8)
while True: x = x * x
== repeated squaring | both L
x = 7
while True: x = x * x
== factorial | both L
import math
math.factorial(10 ** 8)
while True: pass
== hashing for ever | both L
import hashlib
hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10 ** 9)
== a regular expression that explodes | both H
import re
re.match('(a+)+$', 'a' * 40 + 'b')
== another one | both H
import re
re.match('(a|aa)+$', 'a' * 60 + 'b')
== a third | both H
import re
re.search('(.*)*x', 'a' * 40)
== sleep | both L
import time
time.sleep(10 ** 6)
== sleep at once | both L
import asyncio
await asyncio.gather(asyncio.sleep(1000), asyncio.sleep(1000))
== sort by a slow key | both L
sorted(range(10 ** 7), key=lambda x: sum(range(x)))
while True: pass
== a big text | both L
'a' * 10 ** 10
== doubling | both L
x = 'a'
while True: x += x
== doubling lists | both L
x = [0]
while True: x = x + x
== a list for ever | both L
x = []
while True: x.append('y' * 100)
== a dict for ever | both L
x = {}
i = 0
while True:
    x[i] = i
    i += 1
== a memory bomb that catches | both L
x = []
while True:
    try:
        while True: x.append(' ' * 10 ** 6)
    except BaseException:
        pass
== width of a format | both L
'%1000000000d' % 1
== another width | both L
'{:>10000000000}'.format('a')
== replace | both L
('a' * 10 ** 6).replace('a', 'b' * 10 ** 6)
== join | both L
('a' * 10 ** 6).join(['b'] * 10 ** 6)
== product | both L
import itertools
list(itertools.product(range(1000), repeat=4))
== range as a list | both L
list(range(10 ** 12))
== a shift | both L
1 << 10 ** 11
== digits | both F
int('9' * 10 ** 6) and str(10 ** 10 ** 5) and str(9 ** 9 ** 9)
== decimals | both H
from decimal import Decimal
Decimal(10) ** 10 ** 9
== a wide bytes | both L
bytes(10 ** 11)
== recursion | both F
def f(): return f()
f()
== recursion without a limit | python L
import sys
sys.setrecursionlimit(10 ** 9)
def f(): return f()
f()
while True: pass
== deep data | both H
x = []
for _ in range(100000): x = [x]
x
== deep data compared | both H
x = []; y = []
for _ in range(100000): x = [x]; y = [y]
x == y
== deep data as JSON | both H
import json
json.loads('[' * 100000 + ']' * 100000)
== a list in itself | both H
x = []
x.append(x)
x
== a dict in itself | both H
x = {}
x['x'] = x
x
== shared references | both H
x = [0] * 1000; y = [x] * 1000; z = [y] * 1000
z
== shared references as an argument | both H
x = [0] * 1000; y = [x] * 1000; z = [y] * 1000
try:
    graph.open_nodes(names=z)
except ToolError as e:
    print(e)
== a big result | both H
list(range(10 ** 6))
== a big text as a result | both H
'a' * 10 ** 7
== a big argument | both H
try:
    memory.remember(content='a' * 10 ** 7)
except ToolError as e:
    print('refused', e)
== print for ever | both L
while True: print('x' * 1000)
== print one big line | both H
print('x' * 10 ** 7)
== print many lines | both H
for i in range(50000): print(i)
== an error with a big message | both F
raise ValueError('x' * 10 ** 7)
== an error with a message that cannot be made | python F
class E(Exception):
    def __str__(self): raise RuntimeError('no')
raise E()
== an error that pretends | python F
class MemoryError(BaseException): pass
raise MemoryError('x')
== an exception group | python F
raise ExceptionGroup('x', [ValueError(i) for i in range(10000)])
== a chain of errors | both F
e = None
def f(n):
    try:
        raise ValueError(n)
    except ValueError:
        if n: f(n - 1)
        raise
f(50)
== SystemExit | python H
raise SystemExit(3)
== KeyboardInterrupt | both F
raise KeyboardInterrupt()
== a call for ever | both F
while True: memory.recall('x')
== a call for ever that catches | both L
while True:
    try:
        memory.recall('x')
    except Exception:
        pass
== many calls at once | both F
parallel([slow.wait(0) for _ in range(100000)])
== unknown operations for ever | both L
while True:
    try:
        getattr(graph, 'nothing_like_this_x')()
    except Exception:
        pass
== the host's secrets through an operation | both F
odd.bug()
== a forged frame | python L
import os
os.write(1, b'\x00\x00\x00\x10{"op": "nothing"}')
while True: pass
== a frame of 4 GB | python L
import os
os.write(1, b'\xff\xff\xff\xff')
while True: pass
== garbage as a frame | python L
import os
os.write(1, os.urandom(100000))
while True: pass
== a frame of many parts | python L
import os, struct
data = b'[' + b'[],' * 1000000 + b'0]'
os.write(1, struct.pack('>I', len(data)))
while data: data = data[os.write(1, data):]
while True: pass
== a deep frame | python L
import os, struct
data = b'[' * 100000
os.write(1, struct.pack('>I', len(data)))
while data: data = data[os.write(1, data):]
while True: pass
== a forged end | python H
import os, struct, json
data = json.dumps({'op': 'done', 'value': 'forged', 'variables': {'x': 'y' * 100}, 'lost': [1] * 10 ** 5, 'dropped': -5}).encode()
os.write(1, struct.pack('>I', len(data)) + data)
== a forged end of odd types | python H
import os, struct, json
data = json.dumps({'op': 'done', 'error': {'a': 1}, 'message': [1], 'line': 'x', 'variables': [1], 'lost': 5, 'dropped': 'x', 'cut': 3}).encode()
os.write(1, struct.pack('>I', len(data)) + data)
== a forged call | python F
import os, struct, json
data = json.dumps({'op': 'call', 'id': [1], 'path': {'a': 1}, 'args': 5, 'given': None}).encode()
os.write(1, struct.pack('>I', len(data)) + data)
while True: pass
== a flood of forged output | python L
import os, struct, json
data = json.dumps({'op': 'out', 'text': 'x' * 10 ** 6}).encode()
frame = struct.pack('>I', len(data)) + data
while True:
    rest = frame
    while rest: rest = rest[os.write(1, rest):]
== calls whose answers nobody reads | python L
import os, struct, json
for i in range(10 ** 6):
    data = json.dumps({'op': 'call', 'id': i, 'path': 'memory.recall', 'args': ['x' * 1000], 'given': {}, 'at_once': True}).encode()
    rest = struct.pack('>I', len(data)) + data
    while rest: rest = rest[os.write(1, rest):]
== close the pipes | python L
import os
os.close(0); os.close(1)
while True: pass
== a big variable | both H
x = 'a' * 5000000
1
== many variables | both H
for i in range(3000): exec(f'v{i} = {i}')
1
== names of ours as variables | both H
graph = memory = parallel = ToolError = None
cap__ = keep__ = 5
1
== replace what prints | python H
import sys, builtins
builtins.print = None
sys.stdout = None
1
== types that lie | both N
class A:
    def __eq__(self, o): return True
    def __hash__(self): return 1
try:
    r = graph.open_nodes(names=[A()])
except Exception:
    r = None
r
== a str that lies | python H
class S(str):
    def __len__(self): return -1
    def __str__(self): return 'x' * 10 ** 8
S('a')
== a dict that never ends | python L
class D(dict):
    def items(self):
        while True: yield 'a', 1
D(a=1)
while True: pass
== a hash that hurts | both H
d = {}
for i in range(3000): d[i * (2 ** 61 - 1)] = i
len(d)
== lone surrogates | both H
x = chr(0xD800)
print(x)
x
== zero bytes | both H
print('a\0b')
'a\0b'
== text that turns around | both H
'‮' * 100
== not a number | both H
[float('nan'), float('inf'), -float('inf')]
== a class of huge depth | python H
c = object
for i in range(2000): c = type('c', (c,), {})
1
== a comprehension in a comprehension | both L
[[[[0 for _ in range(10 ** 4)] for _ in range(10 ** 4)] for _ in range(10 ** 4)] for _ in range(10 ** 4)]
== a zip bomb | python L
import zlib
b = zlib.compress(b'0' * 10 ** 7)
x = [zlib.decompress(b) for _ in range(1000)]
== xml that grows | python H
import xml.etree.ElementTree as E
doc = '<!DOCTYPE a [<!ENTITY a "' + 'x' * 1000 + '">' + ''.join(f'<!ENTITY {chr(98+i)} "{("&"+chr(97+i)+";")*10}">' for i in range(9)) + ']><a>&j;</a>'
len(E.fromstring(doc).text)
== sqlite in memory | python L
import sqlite3
c = sqlite3.connect(':memory:')
c.execute('with recursive t(x) as (select 1 union all select x + 1 from t) select sum(x) from t').fetchall()
== sqlite in a file | python F
import sqlite3
sqlite3.connect('/tmp/athena-escaped.db').execute('create table t(x)')
== load an extension | python F
import ctypes
ctypes.CDLL('CANARY')
== time travel | python F
import time
time.clock_settime(time.CLOCK_REALTIME, 0)
== a host name | python F
import socket
socket.sethostname('athena-escaped')
== message queues and shared memory | python F
from multiprocessing import shared_memory
shared_memory.SharedMemory(create=True, size=10)
== temporary files | python F
import tempfile
tempfile.TemporaryFile().write(b'x')
== a web browser | python N
import webbrowser
try:
    r = webbrowser.open('http://127.0.0.1:1')
except Exception:
    r = False
r
== an interpreter inside | python H
import code
code.InteractiveInterpreter().runcode("open('/etc/passwd')")
== readline and input | both F
input()
"""


def _parsed() -> list[Hostile]:
    found = []
    for part in _TABLE.strip().split("\n== "):
        head, _, code = part.partition("\n")
        name, _, rest = head.removeprefix("== ").rpartition(" | ")
        where, kind = rest.split()
        found.append(Hostile(name, where, kind, code))
    return found


PROGRAMS = _parsed()
CASES = [(engine, one) for one in PROGRAMS for engine in ("monty", "python") if one.where in (engine, "both")]
