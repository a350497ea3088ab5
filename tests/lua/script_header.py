"""What a script says of itself, compared with what it does.

Invariant: `problems_of` looks at the text alone, so a test can show it a wrong one.

Weakness: it reads the house style and not Lua: one statement a line or a `local` that ends on its
line, indexes that are literals or a loop variable plus a literal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Longest script, in lines.
MOST_LINES = 150

FORBIDDEN = {
    r'"KEYS"': "KEYS walks the whole database",
    r'"H?S?Z?SCAN"': "SCAN walks without a bound",
    r'"SMEMBERS"|"LRANGE"': "reads without a bound",
    r"\bserver\.": "server.call is not known to Redis",
    r'\bpcall\b(?!\("INFO")': "an error that is swallowed leaves half a change",
    r"\bmath\.random": "a script's answer depends on its keys and arguments alone",
    r"\bwhile\b": "a loop without a bound",
    r"\brepeat\b": "a loop without a bound",
    r"\bpairs\b|\bipairs\b": "a loop without a bound that is named",
    r"\bgoto\b": "goto",
}

_ENTRY = re.compile(r"^  (KEYS|ARGV)\[(\d+)(\+?)\]\s+(\w+)\s+(\w+)\s+\S")
_PARAMETER = re.compile(r"^  (\w+)\s+(hash|zset|stream|string|str|int)\s+\S")
_CODE = re.compile(r"(-?\d+) ([A-Z_]+)")
_LOOP = re.compile(r"^\s*for (\w+) = ([^,]+), ([^,]+)(?:, ([^,]+))? do")
_LOCAL = re.compile(r"^\s*local ([\w, ]+) = (.+)$", re.MULTILINE)
_INDEX = re.compile(r"(?<!#)\b(KEYS|ARGV)\[([^\]]+)\]")
_CALL = re.compile(r'redis\.call\(\s*"([A-Z]+)"(?:,\s*([^,)]+))?([^\n]*)')

_TYPES = {"KEYS": {"hash", "zset", "stream"}, "ARGV": {"str", "int"}}
#: What a loop or a whole reading may be bounded by: arguments that Python sends in batches, and the
#: tier table, which publish_tiers wrote itself.
_BOUNDED_BY_ARGUMENTS = {"#KEYS", "#KEYS - 1", "#ARGV"}
_READ_WHOLE = {("HGETALL", "tiers")}


@dataclass(frozen=True)
class Entry:
    """One documented key or argument; `rest` where it stands for all that follow too."""

    array: str
    index: int
    rest: bool
    name: str
    type: str


@dataclass
class Header:
    """The comment that a script begins with."""

    title: str = ""
    purpose: str = ""
    entries: list[Entry] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    returns: str = ""
    codes: dict[int, str] = field(default_factory=dict)

    def of(self, array: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.array == array]


def split(text: str) -> tuple[Header | None, str]:
    """Return the header and the body without comments; no header where there is none."""
    header, body = None, text
    if text.startswith("--[[\n") and "\n]]\n" in text:
        comment, _, body = text.removeprefix("--[[\n").partition("\n]]\n")
        header = _read(comment)
    return header, re.sub(r"--[^\n]*", "", body)


def _read(comment: str) -> Header:
    header = Header()
    first, _, rest = comment.partition("\n")
    title = re.fullmatch(r"  (\w+): (.+)", first)
    if title:
        header.title, header.purpose = title.groups()
    elif first.strip():
        header.purpose = first.strip()
    for line in rest.splitlines():
        entry, parameter = _ENTRY.match(line), _PARAMETER.match(line)
        if entry:
            array, index, more, name, type_ = entry.groups()
            header.entries.append(Entry(array, int(index), bool(more), name, type_))
        elif parameter:
            header.parameters[parameter.group(1)] = parameter.group(2)
        elif line.startswith("  Returns "):
            header.returns = line.strip()
        elif header.returns and re.fullmatch(r"    (-?\d+ [A-Z_]+\s*)+", line):
            header.codes.update({int(code): name for code, name in _CODE.findall(line)})
    for name in re.findall(r"hash `(\w+)`", comment):
        header.parameters[name] = "hash"
    return header


def problems_of(name: str, text: str, includes: dict[str, str]) -> list[str]:
    """Return what is wrong with the verb `name`, one sentence each."""
    header, body = split(text)
    if header is None or header.title != name:
        return [f"expected a header that begins with '{name}: ', got: {text.splitlines()[0]!r}"]
    found = [*_form_problems(text, body), *_entry_problems(header)]
    if not header.returns:
        found.append("expected a line 'Returns ...' in the header")
    found += _index_problems(header, body)
    found += _name_problems(header, body, includes)
    found += _code_problems(header, body)
    found += _call_problems(body, _types_in_body(header, body))
    found += _loop_problems(body)
    for piece in re.findall(r'^--- @include "(\w+)"$', text, re.MULTILINE):
        if piece not in includes:
            found.append(f"includes {piece!r}, which is not there")
    return found


def include_problems(name: str, text: str, includes: dict[str, str]) -> list[str]:
    """Return what is wrong with the piece `name`, one sentence each.

    A parameter may be documented in a piece that this one includes and hands it to.
    """
    header, body = split(text)
    if header is None or not header.purpose:
        return [f"expected a header comment that says what {name} is for"]
    found = _form_problems(text, body)
    if _INDEX.search(body):
        found.append("expected parameters, got: KEYS or ARGV in an included piece")
    for line in body.splitlines():
        if line and not line.startswith((" ", "local ", "end")):
            found.append(f"expected only local functions and constants, got: {line!r}")
    known = dict(header.parameters)
    for piece in re.findall(r'^--- @include "(\w+)"$', text, re.MULTILINE):
        below, _ = split(includes[piece])
        known = (below.parameters if below else {}) | known
    found += _call_problems(body, known)
    found += _loop_problems(body)
    return found


def _form_problems(text: str, body: str) -> list[str]:
    found = []
    if len(text.splitlines()) > MOST_LINES:
        found.append(f"expected at most {MOST_LINES} lines, got: {len(text.splitlines())}")
    if not text.endswith("\n") or "\t" in text:
        found.append("expected spaces, and a newline at the end")
    found += [
        f"{reason}: {match.group()}"
        for pattern, reason in FORBIDDEN.items()
        for match in re.finditer(pattern, body)
    ]
    return found


def _entry_problems(header: Header) -> list[str]:
    found = []
    for array, types in _TYPES.items():
        entries = header.of(array)
        if [entry.index for entry in entries] != list(range(1, len(entries) + 1)):
            found.append(f"{array}: expected 1, 2, 3 ..., got: {[e.index for e in entries]}")
        found += [
            f"{array}[{e.index}]: expected a type of {sorted(types)}, got: {e.type}"
            for e in entries
            if e.type not in types
        ]
        found += [
            f"{array}[{e.index}+] stands for all that follow, and more are documented"
            for e in entries[:-1]
            if e.rest
        ]
    return found


def _index_problems(header: Header, body: str) -> list[str]:
    """Documented indexes against used ones."""
    starts: dict[str, int] = {}
    used: dict[str, set[int]] = {"KEYS": set(), "ARGV": set()}
    rest: dict[str, set[int]] = {"KEYS": set(), "ARGV": set()}
    found = []
    for line in body.splitlines():
        loop = _LOOP.match(line)
        if loop and loop.group(2).isdigit():
            starts[loop.group(1)] = int(loop.group(2))
        for array, index in _INDEX.findall(line):
            variable, _, plus = (part.strip() for part in index.partition("+"))
            if index.isdigit():
                used[array].add(int(index))
            elif variable in starts and (not plus or plus.isdigit()):
                rest[array].add(starts[variable] + int(plus or 0))
            else:
                found.append(f"{array}[{index}]: expected a number or a loop variable plus one")
    for array in used:
        documented = {e.index for e in header.of(array) if not e.rest}
        if used[array] != documented:
            found.append(f"{array}: documented {sorted(documented)}, used {sorted(used[array])}")
        first = {e.index for e in header.of(array) if e.rest}
        reached = {min(rest[array])} if rest[array] else set()
        if reached != first:
            found.append(
                f"{array}: documented {sorted(first)} and what follows, used from {sorted(reached)}"
            )
    return found


def _name_problems(header: Header, body: str, includes: dict[str, str]) -> list[str]:
    """Every key and argument has its documented name in the body too."""
    names: dict[tuple[str, str], str] = {}
    for targets, values in _LOCAL.findall(body):
        for target, value in zip(targets.split(","), _parts(values), strict=False):
            match = _INDEX.search(value)
            if match and re.fullmatch(r"(tonumber\()?(KEYS|ARGV)\[[^\]]+\]\)?", value.strip()):
                names[match.group(1), match.group(2)] = target.strip()
    for called, values in re.findall(r"\b(\w+)\((.*)\)", body):
        parameters = _parameters_of(called, includes)
        for parameter, value in zip(parameters, _parts(values), strict=False):
            match = re.fullmatch(r"(KEYS|ARGV)\[(\d+)\]", value.strip())
            if match:
                names.setdefault((match.group(1), match.group(2)), parameter)
    found = []
    for entry in header.entries:
        label = f"{entry.array}[{entry.index}]"
        if entry.rest:
            got = [n for (a, i), n in names.items() if a == entry.array and not i.isdigit()]
            if got and entry.name not in (got[0], f"{got[0]}s"):
                found.append(f"{label}+ is documented as {entry.name!r}, and called {got[0]!r}")
            continue
        got_name = names.get((entry.array, str(entry.index)))
        if got_name is None:
            found.append(f"{label} {entry.name}: expected a local of that name, got: none")
        elif entry.name not in (got_name, got_name.removesuffix("_key")) and not (
            entry.array == "ARGV" and entry.name in got_name.split("_")
        ):
            found.append(f"{label} is documented as {entry.name!r}, and called {got_name!r}")
        if entry.type == "int" and f"tonumber(ARGV[{entry.index}])" not in body:
            found.append(f"{label} {entry.name} is an int: expected tonumber, got: text")
    return found


def _code_problems(header: Header, body: str) -> list[str]:
    """Documented return codes against returned ones, and the shape of the answer."""
    returned: set[int] = set()
    shapes: set[int] = set()
    for match in re.finditer(r"\breturn (?:\{(.*)\}|(\S+))", body):
        parts = _parts(match.group(1)) if match.group(1) else [match.group(2)]
        if match.group(1):
            shapes.add(len(parts))
        first = parts[0].strip()
        if re.fullmatch(r"-?\d+", first):
            returned.add(int(first))
        elif first == "code":
            for choice in re.findall(r"local code = .* and (-?\d+) or (-?\d+)", body):
                returned.update(map(int, choice))
    found = []
    if returned != set(header.codes):
        found.append(f"codes: documented {sorted(header.codes)}, returned {sorted(returned)}")
    shape = re.match(r"Returns \{([^}]*)\}", header.returns)
    if shape and "..." not in shape.group(1):
        documented = len(shape.group(1).split(","))
        if shapes != {documented}:
            found.append(f"answer: documented {documented} parts, returned {sorted(shapes)}")
    return found


def _types_in_body(header: Header, body: str) -> dict[str, str]:
    types = {entry.name: entry.type for entry in header.of("KEYS")}
    return types | {"copy": "hash"} if "copy" in body else types


def _call_problems(body: str, types: dict[str, str]) -> list[str]:
    found = []
    for command, key, rest in _CALL.findall(body):
        if command == "TIME":
            continue
        type_ = types.get(key.strip())
        if type_ is None:
            found.append(f"{command} {key}: expected a documented key")
        elif command[0] in "HZ" and {"H": "hash", "Z": "zset"}[command[0]] != type_:
            found.append(f"{command} {key}: it is documented as a {type_}")
        if command == "HGETALL" and (command, key.strip()) not in _READ_WHOLE:
            found.append(f"HGETALL {key}: reads without a bound")
        if command == "ZRANGEBYSCORE" and '"LIMIT"' not in rest:
            found.append(f"ZRANGEBYSCORE {key}: reads without a bound")
        if command == "ZRANGE" and not re.match(r", -?\d+, \d+", rest):
            found.append(f"ZRANGE {key}: reads without a bound")
    return found


def _loop_problems(body: str) -> list[str]:
    found = []
    for line in body.splitlines():
        if not re.match(r"\s*for\b", line):
            continue
        loop = _LOOP.match(line)
        if loop is None:
            found.append(f"expected 'for i = first, last do', got: {line.strip()!r}")
            continue
        bound = loop.group(3).strip()
        table = bound.removeprefix("#")
        from_redis = re.search(rf'local {table} = redis\.call\(\s*"\w+"[^)]*\)', body)
        limited = from_redis is not None and (
            '"LIMIT"' in from_redis.group() or '"HGETALL", tiers' in from_redis.group()
        )
        if bound not in _BOUNDED_BY_ARGUMENTS and not limited:
            found.append(f"a loop's end has no bound that is known: {line.strip()!r}")
    return found


def _parameters_of(function: str, includes: dict[str, str]) -> list[str]:
    for text in includes.values():
        match = re.search(rf"local function {function}\(([^)]*)\)", text)
        if match:
            return [part.strip() for part in match.group(1).split(",")]
    return []


def _parts(values: str) -> list[str]:
    """Split at commas outside of brackets and text."""
    parts, depth, quoted = [""], 0, False
    for character in values:
        quoted ^= character == '"'
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
