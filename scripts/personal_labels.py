"""Write the labelled texts for personal data: `own.jsonl` from tables below, `faker.jsonl` and `judge.jsonl` with
values and sentences of Faker.

Each line is `{"text": ..., "values": [[kind, exact substring], ...], "kind": ...}`; a kind `no-...` holds nothing
personal. Faker is no dependency: `pip install faker` into another environment to write its file again.

    .venv/bin/python scripts/personal_labels.py own|faker|judge
"""

# ruff: noqa: E501, SIM905  # tables of texts
import json
import random
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "personal"
SEED = 23
SEEDS = {"faker": SEED, "judge": 4711}  # nobody who wrote rules has read the texts of `judge`
Label = dict[str, Any]
FRAMES = (
    "{}",
    "Please update the record: {}",
    "from the log: user={} status=ok",
    '{{"id": 17, "value": "{}", "ok": true}}',
    "- {} (checked last week)",
    "She wrote {} on the form, and nobody has answered.",
    "| 12 | {} | open |",
    "Kunde: {}; bitte bis Freitag prüfen.",
    "<td>{}</td>",
    "name,value\nmiller,{}\n",
    "I think it is {}.",
    "({})",
)


def luhn_digit(body: str) -> str:
    total = sum(sum(divmod(2 * int(d), 10)) if i % 2 == 0 else int(d) for i, d in enumerate(reversed(body)))
    return str(-total % 10)


class OwnTexts:
    """Texts from our own tables, each kind with other writings of its values."""

    def __init__(self) -> None:
        self.random = random.Random(SEED)

    def digits(self, count: int) -> str:
        return "".join(self.random.choice("0123456789") for _ in range(count))

    def label(self, kind: str, value: str, frame: str | None = None) -> Label:
        text = (frame or self.random.choice(FRAMES)).format(value)
        return {"text": text, "values": [[kind, value]], "kind": kind}

    def no(self, kind: str, text: str) -> Label:
        return {"text": text, "values": [], "kind": f"no-{kind}"}

    def email(self) -> Label:
        first, last = self.random.choice(FIRST_NAMES), self.random.choice(LAST_NAMES)
        form = self.random.choice(("{f}.{l}", "{f}", "{f}_{l}{n}", "{l}+news", "{f}-{l}", "x{n}", "{f}.{l}.{n}"))
        local = form.format(f=first.lower(), l=last.lower(), n=self.random.randrange(99))
        domain = self.random.choice(
            (
                "example.com",
                "mail.example.co.uk",
                "firma-nord.de",
                "uni.edu",
                "a.io",
                "sub.dept.example.org",
                "x1.museum",
            )
        )
        return self.label("EMAIL", f"{local}@{domain}")

    def phone(self) -> Label:
        area, line = self.random.choice(("415", "212", "312", "617", "206")), f"{self.random.randrange(200, 999)}"
        last = self.digits(4)
        national = (
            f"({area}) {line}-{last}", f"{area}-{line}-{last}", f"{area}.{line}.{last}", f"+1 {area} {line} {last}",
            f"+1-{area}-{line}-{last}", f"+1{area}{line}{last}", f"+49 30 {self.random.randrange(2000000, 9999999)}",
            f"+44 20 7946 0{self.digits(3)}", f"+33 6 1{self.digits(1)} {self.digits(2)} {self.digits(2)} {self.digits(2)}",
            f"0044 20 7946 0{self.digits(3)}", f"020 7946 0{self.digits(3)}", f"+91 98765 4{self.digits(4)}",
        )  # fmt: skip
        value = self.random.choice(national)
        frame = self.random.choice((*FRAMES, "Tel. {}", "call {} before noon", '"phone": "{}"', "mobile: {}"))
        if self.random.random() < 0.15:
            value, frame = f"{area}{line}{last}", self.random.choice(("phone: {}", "call me at {}", "Telefon {}"))
        return self.label("PHONE", value, frame)

    def card(self) -> Label:
        prefix, length = self.random.choice(
            (("4", 16), ("51", 16), ("55", 16), ("2223", 16), ("34", 15), ("37", 15), ("6011", 16))
        )
        body = prefix + self.digits(length - len(prefix) - 1)
        number = body + luhn_digit(body)
        separator = self.random.choice(("", " ", "-"))
        groups = (
            [number[:4], number[4:10], number[10:]] if length == 15 else [number[i : i + 4] for i in range(0, 16, 4)]
        )
        return self.label("CARD", separator.join(groups))

    def iban(self) -> Label:
        country, length = self.random.choice(
            (("DE", 22), ("AT", 20), ("CH", 21), ("NL", 18), ("PL", 28), ("DK", 18), ("LT", 20))
        )
        letters = "".join(self.random.choice("ABCDEFGHKLMNPRST") for _ in range(4)) if country == "NL" else ""
        while True:
            body = letters + self.digits(length - 4 - len(letters))
            as_digits = "".join(str(int(char, 36)) for char in body + country) + "00"
            value = f"{country}{98 - int(as_digits) % 97:02d}{body}"
            if _is_iban(value):
                break
        if self.random.random() < 0.5:
            value = " ".join(value[i : i + 4] for i in range(0, length, 4))
        return self.label("IBAN", value)

    def national_id(self) -> Label:
        choice = self.random.randrange(6)
        if choice == 0:
            return self.label(
                "NATIONAL_ID",
                f"{self.random.randrange(100, 660)}-{self.random.randrange(10, 99)}-{self.random.randrange(1000, 9999)}",
            )
        if choice == 1:
            number = self.random.randrange(10_000_000, 99_999_999)
            return self.label("NATIONAL_ID", f"{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}")
        if choice == 2:
            body = self.digits(9)
            for weights in (range(10, 1, -1), range(11, 1, -1)):
                rest = 11 - sum(int(d) * w for d, w in zip(body, weights, strict=True)) % 11
                body += "0" if rest > 9 else str(rest)
            return self.label("NATIONAL_ID", f"{body[:3]}.{body[3:6]}.{body[6:9]}-{body[9:]}")
        if choice == 3:
            body = f"{self.random.choice('12')}{self.random.randrange(30, 99)}{self.random.randrange(1, 13):02d}75{self.digits(3)}{self.digits(3)}"
            return self.label("NATIONAL_ID", f"{body}{97 - int(body) % 97:02d}")
        if choice == 4:
            while True:
                body = self.digits(8)
                check = sum(int(d) * w for d, w in zip(body, range(9, 1, -1), strict=True)) % 11
                if check < 10 and body[0] != "0":
                    return self.label(
                        "NATIONAL_ID", body + str(check), self.random.choice(("BSN {}", "burgerservicenummer: {}"))
                    )
        value = f"{self.random.randrange(100, 660)}{self.random.randrange(10, 99)}{self.random.randrange(1000, 9999)}"
        return self.label(
            "NATIONAL_ID", value, self.random.choice(("SSN: {}", '"ssn": "{}"', "social security number {}"))
        )

    def ip(self) -> Label:
        r = self.random
        if r.random() < 0.6:
            value = f"{r.choice((10, 81, 172, 192, 203))}.{r.randrange(256)}.{r.randrange(256)}.{r.randrange(1, 255)}"
        else:
            value = r.choice(
                (f"2001:db8::{r.randrange(1, 65536):x}", f"2a02:{r.randrange(4096, 65536):x}:1::{r.randrange(1, 99)}",
                 f"fe80::1ff:fe23:4567:{r.randrange(4096, 65536):x}", f"2001:db8:85a3:{r.randrange(1, 9)}:0:8a2e:370:{r.randrange(4096, 9999)}")
            )  # fmt: skip
        frame = r.choice(
            (*FRAMES, "login from {} failed", "client {}.", '{} - - [10/Oct/2024:13:55:36] "GET / HTTP/1.1" 200')
        )
        return self.label("IP", value, frame)

    def birth_date(self) -> Label:
        r = self.random
        year, month, day = r.randrange(1935, 2012), r.randrange(1, 13), r.randrange(1, 29)
        names = "January February March April May June July August September October November December".split()
        value = r.choice(
            (f"{year}-{month:02d}-{day:02d}", f"{day:02d}.{month:02d}.{year}", f"{month}/{day}/{year}",
             f"{day} {names[month - 1]} {year}", f"{names[month - 1]} {day}, {year}")
        )  # fmt: skip
        frame = r.choice(
            ("born on {}", "DOB: {}", "date of birth {}", '"birth_date": "{}"', "Geburtsdatum: {}", "geboren am {} in Köln",
             "née le {}", "birthday: {}", "fecha de nacimiento: {}", "She was born {} and lives here.")
        )  # fmt: skip
        return self.label("BIRTH_DATE", value, frame)

    def hex(self, count: int) -> str:
        return "".join(self.random.choice("0123456789abcdef") for _ in range(count))

    def four(self) -> str:
        return ".".join(str(self.random.randrange(40)) for _ in range(4))

    def negatives(self) -> Iterator[Callable[[], Label]]:
        r = self.random
        yield lambda: self.no(
            "version",
            r.choice(
                ("version {}", "v{}", "upgrade to {}", "pkg=={}", "Chrome/{} Safari", "release {}", "build: {}")
            ).format(self.four()),
        )
        yield lambda: self.no(
            "version",
            f"bumped from {r.randrange(9)}.{r.randrange(20)}.{r.randrange(20)} to {r.randrange(9)}.{r.randrange(20)}.{r.randrange(30)}",
        )
        yield lambda: self.no("hash", f"commit {self.hex(40)} ({self.hex(7)})")
        yield lambda: self.no("hash", f"sha256:{self.hex(64)}")
        yield lambda: self.no(
            "uuid", f"job {self.hex(8)}-{self.hex(4)}-4{self.hex(3)}-a{self.hex(3)}-{self.hex(12)} is done"
        )
        yield lambda: self.no("order", f"order {self._bad_card()} shipped")
        yield lambda: self.no(
            "order",
            f"Order no. {r.randrange(10**7, 10**8)}, invoice INV-{r.randrange(2019, 2026)}-{r.randrange(10**5)}",
        )
        yield lambda: self.no(
            "order",
            f"ticket #{r.randrange(10**9, 10**10)} and part {r.randrange(100, 999)}-{r.randrange(10000, 99999)}",
        )
        yield lambda: self.no("card", f"card {self._bad_card(' ')} was refused: wrong checksum")
        yield lambda: self.no("iban", f"IBAN DE{r.randrange(10, 99)} 3704 0044 0532 0130 0{'x'}")
        yield lambda: self.no("ssn", f"{r.choice(('000', '666'))}-{r.randrange(10, 99)}-{r.randrange(1000, 9999)}")
        yield lambda: self.no(
            "time",
            f"{r.randrange(2019, 2026)}-{r.randrange(1, 13):02d}-{r.randrange(1, 29):02d}T12:{r.randrange(60):02d}:07.{r.randrange(10**6)}Z took {r.randrange(10**6)} ms",
        )
        yield lambda: self.no(
            "time",
            f"since={r.randrange(1_600_000_000, 1_800_000_000)} until={r.randrange(1_600_000_000_000, 1_800_000_000_000)}",
        )
        yield lambda: self.no(
            "date",
            f"the release of {r.randrange(2019, 2026)}-{r.randrange(1, 13):02d}-{r.randrange(1, 29):02d} was moved to {r.randrange(1, 28)} March {r.randrange(2019, 2026)}",
        )
        yield lambda: self.no("code", r.choice(CODE_LINES).format(n=r.randrange(10**6), h=self.hex(12)))
        yield lambda: self.no(
            "code", f"mask = 0x{self.hex(8)}; for i in range({r.randrange(10**6)}): total += {r.random():.10f}"
        )
        yield lambda: self.no(
            "network",
            r.choice(
                ("listen on 127.0.0.1:{n}", "bind 0.0.0.0:{n}", "mask 255.255.255.0, port {n}", "::1 port {n}")
            ).format(n=r.randrange(1000, 65000)),
        )
        yield lambda: self.no("mac", ":".join(self.hex(2) for _ in range(6)))
        yield lambda: self.no("isbn", f"ISBN 978-3-16-{r.randrange(100000, 999999)}-{r.randrange(10)}")
        yield lambda: self.no(
            "math", f"{r.random() * 1e6:.4f} / {r.randrange(10**9)} = {r.random():.12f}; 3.14159265358979"
        )
        yield lambda: self.no("coordinates", f"at 52.{r.randrange(10**6)}, 13.{r.randrange(10**6)}")
        yield lambda: self.no(
            "ssh",
            f"git clone git@github.com:org/repo{r.randrange(99)}.git && npm i @scope/pkg@{r.randrange(9)}.2.{r.randrange(30)}",
        )
        yield lambda: self.no("file", f"img/logo{r.randrange(99)}@2x.png img-{r.randrange(10**8)}.jpg")
        yield lambda: self.no("prose", r.choice(PROSE))

    def _bad_card(self, separator: str = "") -> str:
        body = "4" + self.digits(14)
        number = body + str((int(luhn_digit(body)) + self.random.randrange(1, 10)) % 10)
        return separator.join(number[i : i + 4] for i in range(0, 16, 4))

    def write(self) -> Iterator[Label]:
        for make in (self.email, self.phone, self.card, self.iban, self.national_id, self.ip, self.birth_date):
            for _ in range(60):
                yield make()
        makers = list(self.negatives())
        for index in range(240):
            yield makers[index % len(makers)]()


def _is_iban(value: str) -> bool:
    from stdnum import iban

    return bool(iban.is_valid(value))


FIRST_NAMES = "Ana Ben Chloe Dmitri Elif Femi Greta Hiro Ines Jonas Kofi Lena".split()
LAST_NAMES = "Miller Okafor Silva Nguyen Novak Rossi Schmidt Tanaka Weber Yilmaz".split()
CODE_LINES = (
    "std::vector<int> v({n}); dead::beef(); a[{n}] = b->c;",
    "@app.route('/users/{n}')\ndef show(): return 'x'",
    "SELECT * FROM t WHERE id = {n} AND hash = '{h}'",
    "assert response.status_code == 200  # issue {n}",
    "const id = '{h}-{n}'; // see PR #{n}",
    "color: #ff{n}; width: 100.5px; z-index: 2147483647",
    "1:1:1 ratio, {n}:00 of {n}:59, 10::12 is a slice",
    "docker run image@sha256:{h} -p 8080:80 --memory 512m",
)
PROSE = (
    "The call took place at noon; three of twelve people were on the phone.",
    "She was born in a small town and moved to Berlin in 2009.",
    "Mail the form to the office, then ring the bell.",
    "Section 10.2.3.4 of the standard is about checksums.",
    "The birthday party of the team is on the 4th.",
    "We agreed on 1,250,000 units at 3.75 each, 12-24 months.",
)


def write_faker(seed: int) -> Iterator[Label]:
    """Yield texts whose values, names and sentences come from Faker's providers in fifteen locales."""
    Faker: Any = import_module("faker").Faker  # noqa: N806  # in another environment

    Faker.seed(seed)
    chooser = random.Random(seed)
    locales = "en_US en_GB de_DE fr_FR es_ES it_IT nl_NL pl_PL pt_BR sv_SE fi_FI en_CA en_AU tr_TR da_DK".split()
    fakers = {locale: Faker(locale) for locale in locales}
    english = fakers["en_US"]

    def frame(faker: Any, value: str, cue: str = "") -> str:
        before, after = english.sentence(), faker.sentence()
        return chooser.choice(
            (
                f"{before} {cue}{value} {after}", f"{cue}{value}", f"{faker.name()}, {cue}{value}\n{after}",
                json.dumps({"id": chooser.randrange(999), (cue.strip(": ") or "value"): value}, ensure_ascii=False),
                f"{before}\n\t{cue}{value}",
            )
        )  # fmt: skip

    def add(kind: str, faker: Any, value: str, cue: str = "") -> Label:
        return {"text": frame(faker, value, cue), "values": [[kind, value]], "kind": kind}

    for index in range(60):
        faker = fakers[locales[index % len(locales)]]
        yield add("EMAIL", english, chooser.choice((english.email, english.company_email, english.ascii_safe_email))())
        yield add("PHONE", faker, faker.phone_number(), chooser.choice(("phone: ", "Tel: ", "mobile: ")))
        yield add(
            "CARD", english, english.credit_card_number(chooser.choice(("visa16", "mastercard", "amex", "discover")))
        )
        yield add("IBAN", faker, faker.iban())
        yield add("IP", english, chooser.choice((english.ipv4_public, english.ipv4_private, english.ipv6))())
        date = faker.date_of_birth(minimum_age=18, maximum_age=90)
        written = date.strftime(chooser.choice(("%Y-%m-%d", "%d/%m/%Y", "%d.%m.%Y", "%B %d, %Y")))
        yield add("BIRTH_DATE", english, written, chooser.choice(("DOB: ", "born ", "date of birth: ", "birthdate: ")))
        ids = chooser.choice((("en_US", "SSN: "), ("it_IT", ""), ("es_ES", ""), ("pl_PL", "PESEL: "), ("fi_FI", ""),
                              ("sv_SE", ""), ("en_CA", "SIN: "), ("fr_FR", ""), ("pt_BR", "CPF: ")))  # fmt: skip
        locale_faker = fakers[ids[0]]
        value = {"pt_BR": "cpf", "pl_PL": "pesel", "es_ES": "nif"}.get(ids[0], "ssn")
        yield add("NATIONAL_ID", english, getattr(locale_faker, value)(), ids[1])
    makers = (
        english.user_agent, english.sha256, english.md5, english.uuid4, english.paragraph, english.mac_address,
        english.isbn13, english.iso8601, english.file_path, english.catch_phrase, english.address, english.license_plate,
        lambda: f"{english.random_int(1, 20)}.{english.random_int()}.{english.random_int(0, 99)}", english.hex_color,
        lambda: f"{english.latitude()}, {english.longitude()}", lambda: str(english.unix_time()), english.ean13,
        lambda: english.json(num_rows=2, data_columns={"n": "pyint", "f": "pyfloat", "w": "word"}), english.python_platform_token
        if hasattr(english, "python_platform_token") else english.linux_platform_token,
    )  # fmt: skip
    for index in range(140):
        make = makers[index % len(makers)]
        name = getattr(make, "__name__", "other").strip("<>").replace("_", "-")
        text = chooser.choice(("{}", "{}", "see {} for more", "- {}")).format(make())
        yield {"text": text, "values": [], "kind": f"no-{name}"}


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else "own"
    labels = OwnTexts().write() if source == "own" else write_faker(SEEDS[source])
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{source}.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(label, ensure_ascii=False) + "\n" for label in labels)


if __name__ == "__main__":
    main()
