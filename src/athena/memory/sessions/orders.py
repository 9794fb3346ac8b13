"""Recognise commands, addresses and orders to a model in texts that no person said.

The patterns compare a folded text: without accents, invisible characters, look-alike letters or spaced letters. They
are compiled at the first text, since most processes never need them.
"""

import re
import unicodedata
from functools import cache

from athena.core.text import is_invisible
from athena.memory.sessions.command_names import PLAIN_COMMANDS, TALKED_COMMANDS

MAX_ORDER_CHARS = 4_000  # of a text that is compared
# Cyrillic and Greek letters that look like Latin ones, after case folding
LOOK_ALIKES = str.maketrans("аеорсухіјѕһԁԛԝвкмнтьαεορτυικνχωγζηρ", "aeopcyxijshdqwbkmhtbaeoptuiknxwyzhp")
LEET_DIGITS = str.maketrans("013457@$", "oieastas")
SPACED_LETTERS_PATTERN = re.compile(r"\b(?:[^\W\d][ ._*-]){3,}[^\W\d]\b")  # a digit before them does not count
LETTER_GAP_PATTERN = re.compile(r"[ ._*-]")
# who says "never add a crate without asking me first" wants to be asked
ASKED_FIRST_PATTERN = re.compile(
    r"(?P<rule>(?:please |pls )?(?:never|do not|don\W?t)\s+(?:add|push|merge|deploy|delete|remove|install|change|"
    r"commit|rename|upgrade|update|touch|edit|create|publish|release|rebase|move|drop|send|reformat|refactor|rewrite)\s"
    r"(?:(?!and\b|or\b|but\b|then\b|unless\b|just\b)[\w'/-]+\s+){0,10})without\s+(?:asking|(?:my |our )?"
    r"(?:approval|permission|review|consent))(?:\s+(?:me|us|first|beforehand|from me|by me))*\W*"
)
MIXED_WORD_PATTERN = re.compile(r"\b[\w@$]{4,}")  # without lookaheads, which would read a run again at each place

_ATHENA_COMMANDS = r"""approve|backup|call|consolidate|daemon|doctor|edit|eval|export|forget|hook|import|ingest|init
      |learn|learned|list|mcp|migrate|passphrase|projects|purge|recall|reembed|remember|restore|run|savings|serve|servers
      |shell|show|skills|token|tools|undo"""
_TLDS = r"""(?:com|net|org|edu|gov|mil|int|info|biz|io|dev|app|xyz|example|invalid|test|top|site|online|shop|club
      |cloud|link|live
    |page|store|space|tech|website|zip|mov|co|me|ai|tk|ga|cf|gq|ru|cn|de|uk|fr|nl|es|it|eu|us|ch|at|pl|se|no|fi|jp|kr
      |in|br|to
    |ly|gg|onion|internal|icu|ws|vip|pro|pw|su|lol|tv|cyou|sbs|cfd|bond|monster|quest|mobi|asia|buzz|click)"""
_LABEL = (
    r"(?<![\w-])-*+\b[\w-]+"  # of a name; from its beginning, or a run of "-a" would be read to its end at each place
)
# A folded text has the shape of an address. No part repeats without end: a text of one long word must not take long.
_ADDRESS = rf"""
    \b(?:h[tx]{{2}}ps?|ftps?|sftp|ssh|git|s3|gs|smb|ldaps?|file|data|javascript|vbscript|wss?|tcp|udp|ipfs|magnet|jdbc
      |mailto
      |[a-z][a-z0-9+.-]{{1,15}}:/) \s*:\s*(?:/|\\|[a-z0-9.+-]+[@,;])
  | [a-z][a-z0-9+-]{{1,15}}\s*:\s*/\s*/
  | \bwww\s*\.\s*\w
  | [\w.+%-]\s?(?:@|\(at\)|\[at\]|\{{at\}})\s?(?:[\w-]+\s?(?:\.|\(dot\)|\[dot\]|\[\.\]|\{{dot\}})\s?)+[a-z]{{2,}}
  | [\w.+-]@[\w.-]+:
  | \b[a-z0-9-]{{1,63}}\.{_TLDS}\b(?!\.?[\w(])
  | (?<![/\\])\b[a-z0-9-]{{2,63}}\.(?!(?:js|ts|py|md|c|h|go|json|ya?ml|html?|css|txt|toml|x)\b)
      [a-z]{{2,24}}(?::\d{{2,5}})?/\w
  | {_LABEL}\.(?:[\w-]+\.){{0,4}}[a-z]{{2,}}(?::\d{{2,5}})?/[\w?#%&=~.-]*[?=&]
  | {_LABEL}\s?(?:\[\.\]|\(\.\)|\{{\.\}}|\[dot\]|\(dot\)|\bdot\b|\bpunkt\b|\bpunto\b|\bpoint\b)\s?{_TLDS}\b
  | (?<![\w.])(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?![\w.]*\d)
  | (?<![\w:])(?:[0-9a-f]{{0,4}}:){{3,7}}[0-9a-f]{{1,4}}\b | (?<![\w:])[0-9a-f]{{0,4}}::[0-9a-f]{{1,4}}\b
  | \b0x[0-9a-f]{{8}}\b
  | \\\\[\w.-]+\\\w
  | (?:%[0-9a-f]{{2}}){{3}} | &\#x?[0-9a-f]+; | \\[ux][0-9a-f]{{2,4}}
  | (?<![\w/+])(?=[a-z0-9+/]*\d)(?=[a-z0-9+/]*[a-z])[a-z0-9+/]{{44,}}={{0,2}}
      | (?<![\w/+])[a-z0-9+/]{{14,}}={{1,2}}(?![\w=])
  | \b(?:bit\.ly|t\.co|tinyurl|pastebin|ngrok|webhook\.site|gist)\b
  | \b(?:javascript|vbscript)\s*:\s*\w | \bdata:\w+/ | \bmagnet:\? | \b(?:tel|sms|sip|callto|skype|facetime):[+\w]
  | (?<![\w./-])(?!(?:ports?|lines?|codes?|errors?|status|ids?|https?|issues?|pr|pages?|years?|rows?|columns?|steps?)\b)
      [a-z][a-z0-9-]{{1,62}}:(?:80|\d{{3,5}})(?![\w:.])
  | \b(?:[a-z0-9-]{{1,63}}\.){{1,5}}(?!(?:js|ts|py|md|c|h|go|rs|rb|java|json|ya?ml|html?|css|txt|toml|tsx|jsx|sh|sql
      |cpp|cs|kt|log)\b)[a-z]{{2,24}}:\d{{2,5}}\b
  | \bxn--[a-z0-9]
  | (?<![\w.-])(?=[\w-]*[^\x00-\x7f])[\w-]{{1,63}}\.{_TLDS}\b(?!\.?[\w(])
  | (?<![\w.-])[\u0370-\u04ff0-9-]{{2,63}}\.[\u0370-\u04ff]{{2,6}}(?![\w.])
"""
_PROSE = r"""(?:an?|the|this|that|these|those|it|its|is|are|was|were|be|been|has|have|had|and|or|but|nor|with|without|in
      |on|at|to|of|for|from|by|as|than|then|so|if|when|while|where|which|who|because|since|until|after|before|not|no|only
      |also|too|now|here|there|can|could|may|might|must|should|will|would|does|do|did|needs?|uses?|runs|fails?|failed
      |works?|takes?|gives?|returns?|supports?|reads?|writes?|says?|sees?|gets?|makes?|breaks?|hangs?|exits?|reports?
      |scripts?|versions?|files?|images?|containers?|projects?|packages?|modules?|commands?|builds?|tests?|fixtures?
      |plugins?|jobs?|steps?|targets?|rules?|users?|servers?|clients?|shells?|code|models?|sure|und|oder|ist|mit|et|est
      |avec|y|con|alone|itself|instead|again|first|hooks?|workflows?|actions?|repos?|repositor\w+|histor\w+|logs?
      |support|syntax|output|input|errors?|exceptions?|functions?|class\w*|objects?|values?|variables?|arguments?
      |branch\w*|commits?|tags?|releases?|layers?|volumes?|networks?|compose|desktop|hub|registr\w+|charts?)\b"""
_ARGUMENT = rf"""\s+(?!{_PROSE})["']?[\w.~/$@:+-]"""
_NAMED_COMMAND = rf"""
    \b(?:{"|".join(map(re.escape, PLAIN_COMMANDS.split()))}){_ARGUMENT}
  | (?:^|[:`"'(]\s*|\b(?:after|since|was|were|with|via|using|by|ran|running|execut\w+|typed?|through)\s+|\brun\s+)
      (?:\./)?(?:{"|".join(map(re.escape, TALKED_COMMANDS.split()))})\b(?!\s+v?\d){_ARGUMENT}
  | \bathena\s+(?:{_ATHENA_COMMANDS})\b(?!\s+(?:is|are|was|were|fails?|failed|takes?|needs?|has|can|does)\b)
"""
_PROGRAM = r"""(?:curl|wget|sudo|doas|chmod|chown|chattr|ssh|scp|sftp|rsync|ncat|netcat|socat|telnet|powershell|pwsh
      |iex|irm|iwr
    |xargs|crontab|systemctl|launchctl|osascript|nohup|mkfifo|certutil|bitsadmin|mshta|rundll32|regsvr32|schtasks|setx
      |wmic
    |useradd|usermod|passwd|visudo|iptables|ufw|insmod|modprobe|mkfs|dd|shred|base64|openssl|gpg|aria2c|lwp-download
      |fish|ksh
    |dash|busybox|tclsh|deno|bunx|pipx|uvx|npx|ansible-playbook)"""
_COMMAND = rf"""
    \b{_PROGRAM}\s+(?:-|/|~|\.|\$|"|'|[a-z0-9]*[./:=@]|\w+\s+[-/~.$]|(?:sh|bash|rm|cat|su|apt|install)\b)
  | \b(?:rm|sh|bash|zsh|nc|perl|python[\d.]*|py|node|ruby|php|lua|sed|awk|cat|cp|mv|ln|tar|unzip|git|make|go|cargo
      |find|kill
      |pkill|killall|export|source|env|tee|touch|mkdir|echo|printf|exec|eval|su|at|cmd|start|reg|net|sc|java|dotnet
      |bun|uv|tsx
      |docker|podman|kubectl|helm|terraform|aws|gcloud|az|gh|mvn|gradle|psql|mysql|sqlite3|redis-cli|mongo)\s+
      (?:-{{1,2}}[a-z?]|/[a-z]\b(?:\s|$)|[~$]|\.{{0,2}}/[\w.]|"[^"]*"\s*[|>;&])
  | \b(?:pip[\d.]*|npm|pnpm|yarn|npx|bun|uvx?|pipx|apt(?:-get)?|dnf|yum|pacman|apk|brew|port|snap|choco|winget|scoop
      |gem|composer
      |docker|podman|kubectl|git|gh|cargo|go|terraform|helm|conda|mamba|poetry|claude|code|vagrant|ansible|gcloud|aws
      |az|flyctl
      |heroku|vercel|netlify|systemctl|service)\s+
      (?:-\S+\s+)*(?:install|run|exec|add|compose\s+(?:up|run|exec|down|build|pull)|apply|push|clone|commit|checkout
      |config|build|get|delete|up|pull|i|publish|reset|rebase
        |remote|submodule|ci|x|dlx|global|import|login|auth|set|create|remove|rm|start|stop|restart|enable|disable
      |deploy|ssh|s3
        |mcp|plugin|init|fetch|merge|tag|revert|cherry-pick|stash|clean|restore|switch)\b(?!\s+(?:is|are|was|were
      |fails?|failed|takes?|needs?|has|and\s+\w+\s+are)\b)
  | \b(?:python[\d.]*|py|node|perl|ruby|php|sh|bash|zsh|deno|tsx|source|exec|eval
      |java)\s+["']?(?!v?\d)[\w./~\\-]*[./~\\][\w./~-]
  | [|&;]\s*(?:sh|bash|zsh|sudo|rm|curl|python[\d.]*|perl|node|iex|tee|xargs|nc|base64|cmd|powershell)\b
  | &&|\|\||\$\(|\$\{{|`\s*\$|<\(|(?<![\w-])\d?>{{1,2}}\s*(?:[~/.]|&\d|\w+\.\w+|/dev/)
  | (?:^|[\s`'"(])\.{{1,2}}/[\w./-]+\.(?:sh|py|exe|bat|ps1|js|rb|pl|run|bin|cmd)\b
  | (?:^|[\s`'"(])(?:[a-z_]\w*=\S+\s+){{1,3}}(?:\./|[a-z][\w.-]*\s+-)
  | (?<![\w-])(?!(?:the|an?|with|its|use|uses|and|or|flags?|options?|no|without|needs?|via|by|of|is|takes|has|under
      |behind|supports?|to)\s)
      [a-z][\w.-]{{1,20}}\s+(?:[\w./:=-]+\s+){{0,3}}
      (?<!\sa\s)(?<!\san\s)(?<!\sthe\s)(?<!\sits\s)(?<!\swith\s)--?[a-z][\w-]*(?:[= ][^\s]+)?
  | \b(?:os\.(?:system|popen|exec\w*|remove|environ)|subprocess\.\w+|shutil\.rmtree|__import__|importlib|child_process
      |execsync
      |process\.env|runtime\.getruntime|system\.diagnostics|invoke-(?:webrequest|expression|restmethod|command)
      |new-object|start-process
      |set-executionpolicy|downloadstring|xmlhttprequest|document\.cookie|require\s*\(|import\s*\(|fetch\s*\(
      |eval\s*\(|exec\s*\(
      |system\s*\(|popen\s*\(|spawn\s*\(|compile\s*\(|pickle\.loads?|yaml\.load|urlopen|requests\.(?:get|post|put)
      |axios\.|socket\.
      |getattr\s*\(|setattr\s*\(|globals\s*\(|settimeout\s*\()
  | \b[a-z_][\w.]*\(\s*(?:["'f]|\w+\s*=|\{{|\[)
  | \b(?:import|from)\s+(?:os|sys|subprocess|socket|requests|shutil|ctypes|urllib|base64|pickle)\b
  | \b(?:drop|truncate|alter)\s+(?:table|database|schema|user|role)\b | \bdelete\s+from\s+\w+
      | \bupdate\s+\w+\s+set\s+\w+\s*=
  | \b(?:insert\s+into|grant\s+all|select\s+.{{1,40}}\sfrom\s+\w+\s+where|union\s+select|into\s+outfile|load_file
      |xp_cmdshell)\b
  | \b(?=\w*(?:tls|ssl|verify|reject|skip|disable|allow|proxy|path|preload|token|secret|key|insecure|trust))
      [a-z]+(?:_[a-z]+)+=\S | \b(?:uvx|npx|bunx|pipx)\s+\S
  | :\(\)\s*\{{ | \brm\s+-?rf?\b | \bmkfs\b | /etc/(?:passwd|shadow|sudoers|hosts|cron) | (?:~|\$home|/root
      |/home/\w+)/\.(?:ssh|aws|bash|zsh|profile|config|gnupg|netrc)
  | \bid_(?:rsa|ed25519)\b | \bauthorized_keys\b | \.(?:bashrc|zshrc|profile|netrc|pgpass|npmrc|pypirc)\b | \.ssh/
  | (?:^|\s)/(?:plugin|mcp|hooks|permissions|allowed-tools|login|logout|config|agents|model|add-dir|bug|init|memory)\b
  | \b(?:execute_code|bypasspermissions|dangerously[-_ ]?skip[-_ ]?permissions|--dangerously|allowedtools|--yolo
      |auto-?approve)\b
  | \bmemory\.(?:forget|remember|purge|update)\w* | \bmcp__\w+
"""
_INSTRUCTIONS = r"""(?:instructions?|directions?|directives?|prompts?|guidelines?|guardrails?|system\s+messages?
      |commands?|orders?
    |safety|anweisung\w*|instruktion\w*|vorgaben?|regeln|befehle?|richtlinien?|consignes?|directives|regles?|ordres
    |instrucc?ion\w*|ordenes|reglas?|indicaciones|directrices|istruzion[ei]|regole|ordini|indicazioni|instruc(?:ao
      |oes)|regras?|ordens
    |diretrizes|instructies?|opdrachten?|regels|richtlijnen|instrukcj\w+|polecen\w+|zasad\w*|instruktioner\w*
      |instruktionen
    |инструкци\w*|указани\w*|правил\w*|команд\w*|uhctpykunn|ykaзahn\w*|talimat\w*|yonerge\w*)"""
_IGNORE = r"""(?:ignor\w*|disregard\w*|forget|overrid\w*|overrul\w*|bypass\w*|discard|neglect|circumvent|set\s+aside
      |stop\s+following
    |(?:do\s+not|don\W?t|never|no\s+longer)\s+(?:follow|obey|listen\s+to|heed|respect)|pay\s+no\s+(?:attention|heed)
      |cancel|void|supersede\w*
    |missacht\w*|vergiss|vergessen|uberge\w*|beachte?\w*\s+nicht|nicht\s+(?:mehr\s+)?(?:beachten|befolgen)
      |befolge\s+nicht|verwirf
    |oublie[zr]?|neglige[zr]?|ne\s+(?:tiens|tenez)\s+pas\s+compte|fais\s+abstraction|olvid\w+|desatiende|omite
      |haz\s+caso\s+omiso|no\s+(?:hagas|sigas)
    |dimentica\w*|trascura\w*|non\s+seguire|esque[cç]a\w*|desconsider\w*|nao\s+siga|negeer|vergeet|volg\s+niet
      |zignoruj|zapomnij|pomin
    |glom|strunta|игнориру\w*|проигнорируй\w*|забудь\w*|не\s+обращай\w*|yok\s+say|unut)"""
_EARLIER = r"""(?:previous\w*|prior|earlier|preceding|above|former|foregoing|all|any|every\w*|your|existing|current
      |original|initial|old|these|those
    |other|system|user\W?s?|vorherig\w*|bisherig\w*|vorangegangen\w*|fruher\w*|alle\w*|obig\w*|deine?\w*|precedent\w*
      |anterieur\w*|toutes|tous
    |anterior\w*|previa\w*|previo\w*|todas?|todos|precedent\w*|tutt[ei]|vorige|eerdere|bovenstaande|poprzedni\w*
      |wszystki\w*|tidigare|alla
    |предыдущ\w*|все|всё|прежн\w*|onceki|tum)"""
_MODEL = r"""(?:assistants?|models?|agents?|ais?|llms?|chatbots?|bots?|claude|gpt\S*|chatgpt|gemini|copilot|codex
      |cursor|ki|ia)"""
_SECURITY = r"""(?:verif\w*|signatures?|(?:security|safety|certificate|signature|permission|status|type|access
      |license)\s+checks?|checks|authenticat\w*|authoriz\w*|auth|sandbox\w*
    |hooks?|tls|ssl|certificates?|approvals?|confirmations?|code\s+reviews?|reviews?|firewalls?|antivirus|audit\w*
      |logging|guards?|guardrails?
    |safety|safeguards?|permissions?|protection\w*|encryption|2fa|mfa|csrf|cors|rate\s+limits?|redaction|scann\w*
      |prufung\w*|signatur\w*|zertifikat\w*
    |verificac\w*|certificad\w*|seguridad|firma\w*|segurança|seguranca|securite|certificats?|sicherheit\w*)"""
_SECRET = r"""(?:secrets?|tokens?|api[\s_-]*keys?|(?:private|ssh|signing|access)\s+keys?|keys|credentials?|passwords?
      |passphrases?|\.?env\b|environment(?:\s+variables)?|cookies?|system\s+prompts?
    |source\s+code|database|dump|customer\s+data|(?:conversation|chat)(?:\s+history)?|wallets?|memor(?:y|ies)
      |transcripts?|files?\s+contents?|contents?\s+of
    |geheimnis\w*|schlussel\w*|passwort\w*|zugangsdaten|umgebungsvariablen|contrasena\w*|credenciales|claves?
      |variables|mots?\s+de\s+passe|identifiants|cles?
    |senhas?|credenciais|chaves?|chiavi|credenziali|wachtwoord\w*|sleutels?|пароли?|ключи?|токен\w*)"""
_RUN = r"""(?:run|execute|launch|start|invoke|eval(?:uate)?|paste|pipe|install|download|fetch|open|visit
      |browse(?:\s+to)?|click|load|follow|decode|enter|type|perform|apply
    |fuhr\w*|starte\w*|installiere?\w*|offne\w*|lade\w*|besuche?\w*|execute[zr]?|lance[zr]?|installe[zr]?
      |telecharge[zr]?|ouvre[zr]?|visite[zr]?|ejecut\w+|instal\w+|descarg\w+|abr[ea]\w*|visit\w+|execut\w+|baix\w+
    |esegui\w*|installa\w*|scarica\w*|apri\w*|voer|installeer|download|uruchom|zainstaluj|запусти\w*|выполни\w*
      |установи\w*|скача\w*)"""
_SEND = r"""(?:send|post|upload|e-?mail|mail|forward|submit|leak|exfiltrat\w*|share|transmit|report|publish|reveal
      |print|show|dump|output|disclose|expose|copy|paste|attach|append|write|log|commit|encode|read\s+out|repeat
      |recite|give
    |sende?\w*|schick\w*|verschick\w*|leite\w*|lade\w*|teile\w*|zeige?\w*|gib|envoi\w*|envoye[zr]?|transmet\w*
      |partage\w*|affiche\w*|divulgue\w*|envia\w*|enviar|manda\w*|muestra\w*|revela\w*|sube\w*|comparte\w*|mostr\w+
      |invia\w*|stuur|verstuur|deel|toon|wyslij|отправ\w*|пришли\w*|покажи\w*)"""
_INJECTION = rf"""
    \b{_IGNORE}\b[^.!?]{{0,40}}?\b{_EARLIER}\b[^.!?]{{0,40}}?\b(?:{_INSTRUCTIONS}|rules?|polic\w+|constraints?
      |restrictions?|settings|context|messages?|conversation|told|said|text)\b
  | \b{_IGNORE}\s+(?:the|your|my|the\s+user\W?s|die|deine|les|las|los|le|as|de|все)?\s*{_INSTRUCTIONS}\b
  | \b{_EARLIER}\b[^.!?]{{0,20}}\b{_INSTRUCTIONS}\b[^.!?]{{0,40}}\b(?:{_IGNORE}|void|invalid|obsolete|revoked
      |cancel\w*|no\s+longer|ungultig|nicht\s+mehr|annul\w*|outdated|superseded|do\s+not\s+apply)\b
  | \b(?:forget|ignore|disregard)\s+(?:everything|all\s+(?:of\s+)?(?:that|this)|what\s+(?:you|i|they|the\s+user))\b
  | \b(?:vergiss|ignorier\w*)\s+(?:alles|was)\b | \boublie[zr]?\s+tout\b | \bolvid\w+\s+todo\b
      | \bdimentica\w*\s+tutto\b | \bvergeet\s+alles\b | \bзабудь\w*\s+(?:все|всё)\b | \besque[cç]a\s+tudo\b
  | \bsystem\s*prompts?\b | \b(?:new|updated|revised|real|actual|secret|hidden)\s+(?:system\s+)?(?:instructions?
      |directives?|orders?|task)\s*(?::|for\b|from\b|follow|below|are\b) | \bdeveloper\s+(?:mode|messages?)\b
      | \bjailbr\w+ | \bdan\s+mode\b | \bprompt\s+injection\b
  | \byou\s+are\s+(?:now|no\s+longer|free|an?\s+\w+\s+(?:ai|assistant|agent|model)|in\s+\w+\s+mode|root|authori[sz]ed
      |allowed|permitted|required|obliged|instructed) | \bact\s+as\s+(?:if|an?|the|root|admin)\b
      | \bpretend\s+(?:to\s+be|you|that)\b | \brole-?play\b | \bfrom\s+now\s+on\W+(?:you|always|never|only|answer
      |respond|treat|use)\b
  | \b(?:attention|note|notice|message|important|instructions?|memo|reminder|hinweis|achtung|nota|warning|hello|hi|hey
      |dear|to)\W+(?:(?:to|for|from|an|fur|pour|para|all|any|the|every|die|alle|an\s+alle|coding|ai|llm
      |language)\W+){{0,4}}{_MODEL}\b\W
  | \b{_MODEL}\b[^.!?]{{0,40}}?\b(?:must|should|shall|has\s+to|have\s+to|needs?\s+to|reading\s+this|is\s+(?:required
      |instructed|told|authori[sz]ed|allowed|expected)|are\s+(?:required|instructed|told|authori[sz]ed|allowed
      |expected)|muss|mussen|soll(?:en|te)?|doit|doivent|debe\w*|deve\w*|moet\w*)\b
  | \b(?:ignore|disregard|disobey|defy|override|overrule)\s+(?:(?:the|your|all)\s+)?(?:\w+\s+)?(?:of\s+)?(?:(?:the
      |your)\s+)?
      (?:user|person|human|owner|developer)\b
  | \b(?:reading|reads?|sees?|seeing|loads?|processing|processes)\s+this\b | \bhighest\s+priority\b
  | \b(?:permissions?|approval|consent|access|authori[sz]ation)\s+(?:is\s+|was\s+|has\s+been\s+)?(?:granted|given
      |obtained)\b
  | \b(?:user|person|human|owner|developer|boss|maintainer)\s+(?:said|says|told\s+\w+|confirmed|stated
      |wrote)\s+(?:that\s+)?(?:it|this|everything|you|we|agents?)\b
  | (?:^|[.!?>)\]\n]\s*)(?:human|assistant|system|user|developer|tool\s+(?:result|output|call)|function\s+(?:result
      |call))\s*[:：]
  | </?\s*[\w:-]*(?:tool|system|function|invoke|instruction|antml|im_start|im_end|assistant|human|user|thinking
      |reminder|result)[\w:-]*\s*/?>
  | <\|\s*\w+\s*\|>
  | \bdear\s+{_MODEL}\b | (?:^|[.!?:;]\s+){_MODEL}\s*[,:]\s*(?:please\s+)?\w
  | \b(?:do\s+not|don\W?t|never|without|avoid)\s+(?:tell\w*|mention\w*|inform\w*|alert\w*|warn\w*|show\w*|ask\w*
      |notify\w*|reveal\w*|consult\w*|bother\w*|report\w*)\b[^.!?]{{0,20}}\b(?:user|person|human|owner|anyone|anybody
      |them|him|her|me|developer|customer|permission|confirmation|approval|first)\b | \bwithout\s+(?:asking|telling
      |confirm\w*|approval|permission|review|consent|notice|warning)\b | \bsilently\b | \bsecretly\b | \bcovertly\b
  | \bohne\s+(?:nachfrage|ruckfrage|zu\s+fragen|bestatigung|zustimmung|erlaubnis|genehmigung)\b | \b(?:dem
      |den)\s+(?:nutzer|benutzer|anwender)\s+nicht(?:s)?\b | \bsans\s+(?:demander|confirmation|prevenir
      |autorisation)\b | \bsin\s+(?:preguntar|confirmar|avisar|permiso|aprobacion)\b | \bsenza\s+(?:chiedere|conferma
      |avvisare)\b | \bsem\s+(?:perguntar|confirmar|avisar)\b | \bzonder\s+(?:te\s+vragen|bevestiging|toestemming)\b
      | \bбез\s+(?:подтвержден\w*|спроса|разрешен\w*)
  | \b(?:the\s+)?(?:user|person|human|owner|developer|maintainer|admin\w*|operator|boss|ceo|anthropic|openai
      |security\s+team)\s+(?:has\s+|have\s+|already\s+|hereby\s+|explicitly\s+){{0,3}}(?:approv\w+|authori[sz]\w+
      |allow\w+|permit\w*|consent\w*|grant\w+|confirm\w+|pre-?approv\w+|agreed|waive\w+|trust\w*|instruct\w+|order\w+
      |demand\w*|command\w*|wants\s+(?:you|the\s+(?:agent|assistant|model))|asks?\s+(?:you|the\s+(?:agent|assistant
      |model))|expects\s+you|says\s+(?:to|you)|told\s+(?:you|the))\b | \b(?:already|pre-?)\s*(?:approved
      |authori[sz]ed)\b | \bon\s+behalf\s+of\s+the\s+user\b
  | \bder\s+(?:nutzer|benutzer|anwender)\s+(?:hat\s+)?(?:\w+\s+){{0,3}}(?:genehmigt|erlaubt|zugestimmt|freigegeben)\b
      | \bl\W?utilisateur\s+a\s+(?:\w+\s+)?(?:approuve|autorise|accepte)\b | \bel\s+usuario\s+(?:ha\s+
      |ya\s+)*(?:aprob\w+|autoriz\w+|permit\w+)
"""
_REQUEST = rf"""
    \byou(?:\W?(?:ll|re|ve))?\s+(?:must|should|shall|have\s+to|need\s+to|are\s+to|will|can|may|ought|better|always
      |never)\b | \byour\s+(?:new\s+)?(?:task|role|goal|job|mission|objective|instructions?|first\s+(?:action|step)
      |next\s+(?:action|step)|tools?|memory|context|answer|response|output|permissions?)\b | \bas\s+an?\s+(?:ai|llm
      |language\s+model|assistant|agent)\b
  | \b(?:du|sie)\s+(?:musst|mussen|sollst|sollen|darfst|durfen|bist\s+(?:jetzt|nun|ab)|wirst|sind\s+(?:jetzt|nun)
      |hast\s+zu|kannst)\b | \bab\s+(?:jetzt|sofort|nun)\b | \b(?:tu|vous)\s+(?:dois|devez|es\s+(?:maintenant
      |desormais)|etes\s+(?:maintenant|desormais)|peux|pouvez|allez|vas)\b | \bdesormais\b | \bagis\s+comme\b
  | \b(?:debes|debe|tienes\s+que|ahora\s+eres|eres\s+ahora|a\s+partir\s+de\s+ahora|actua\s+como)\b | \b(?:devi|deve
      |ora\s+sei|d\W?ora\s+in\s+poi|agisci\s+come)\b | \b(?:voce\s+deve|voce\s+agora|a\s+partir\s+de\s+agora
      |aja\s+como|finja)\b | \b(?:je\s+moet|u\s+moet|jij\s+bent\s+nu|je\s+bent\s+nu|vanaf\s+nu|doe\s+alsof)\b
      | \b(?:musisz|jestes\s+teraz|od\s+teraz)\b | (?:ты\s+(?:должен|теперь)|вы\s+должны|с\s+этого\s+момента
      |теперь\s+ты|ведите?\s+себя|tы\s+дoлжeh)
  | (?:^|[.!?;:,]\s*|\b(?:please|always|first|then|and|now|must|should|to|just|never|bitte|immer|zuerst|und|toujours
      |siempre|sempre|altijd|veuillez|por\s+favor)\s+)(?:disable|turn\s+off|switch\s+off|deactivate|skip|bypass|remove
      |weaken|suppress|lower|relax|avoid|omit|deaktivier\w*|uberspring\w*|umgeh\w*|schalte\w*|desactiv\w+|desativ\w+
      |disattiv\w+|omit\w*|schakel|negeer)\b[^.!?]{{0,40}}?\b{_SECURITY}\b
  | (?:^|[.!?;:,]\s*|\b(?:please|always|then|and|now|just|must|should|auto\w*)\s+)(?:approve|accept|allow|grant|trust
      |permit|whitelist|allowlist|confirm)\s+(?:all|any|every\w*|each|it|them|the\s+(?:request|next|call|server|tool
      |domain|host)\w*|requests?|calls?|servers?|tools?|permissions?)\b
  | \b{_SEND}\b[^!?]{{0,40}}?\b(?:{_SECRET})\b[^!?]{{0,50}}?\b(?:to|into|in|via|an|nach|a|au|aux|vers|ins|al?|naar
      |do|на|в|here|below|back|out)\b | \b(?:send|upload|e-?mail|forward|leak|exfiltrat\w*|transmit|disclose|sende?
      |schicke?|envoie[zr]?|envia|manda|invia|stuur)\b[^!?]{{0,30}}?\b{_SECRET}
  | (?:^|[.!?;:,"'(]\s*|\b(?:please|always|first|then|and|now|must|should|just|before\s+\w+|bitte|zuerst|immer|dann
      |und|veuillez|toujours|siempre|luego|sempre|poi|altijd|eerst|пожалуйста
      |сначала)\s+){_RUN}\b\W+(?:\w+\W+){{0,4}}?(?:it|this|that|them|these|following|script\w*|installer\w*|binar\w+
      |executable\w*|updaters?|payload\w*|attachment\w*|commands?|code|snippet\w*|link\w*|url\w*|page|website|file
      |program\w*|package|plugin\w*|extension\w*|macro\w*|shell|terminal|skript\w*|befehl\w*|datei\w*|programm\w*
      |seite\w*|paket\w*|commande\w*|fichier\w*|page\w*|lien\w*|paquet\w*|comando\w*|archivo\w*|enlace\w*|pagina\w*
      |codigo\w*|programa\w*|paquete\w*|codice\w*|pacchett\w*|script|opdracht\w*|bestand\w*|скрипт\w*|команд\w*|код\w*
      |программ\w*)\b
  | \b(?:safe|fine|ok(?:ay)?|allowed|permitted|free|authori[sz]ed)\s+to\s+(?:approve|accept|delete|remove|skip|bypass
      |push|merge|run|execute|deploy|ignore
      |disable|wipe|send|share|drop|overwrite|install)\b
  | \b(?:use|take|read|get|copy)\s+(?:the\s+|any\s+|all\s+)?{_SECRET}\b[^!?]{{0,40}}?\b(?:to|and|for)\b
  | \b(?:tell|inform|assure|convince|hide\b[^.!?]{{0,30}}\bfrom|trick|deceive)
      \s+the\s+(?:user|person|human|developer|owner)\b
  | \bcall\s+(?:the|an?|this)\s+(?:\w+\s+)?(?:tool|function|operation|server|endpoint|shell)\b
  | (?:^|[.!?;:,]\s*|\b(?:please|and|then)\s+)execute\s
  | \bmalware\b | \bbackdoor\b | \breverse\s+shell\b | \bkeylog\w* | \bcryptomin\w* | \bxmrig\b
"""
# An imperative of somebody who wants something done now; rules ("Use tabs", "Never deploy on Fridays") are no such.
_IMPERATIVE = r"""
    (?:^|[.!?;:]\s+|,\s+(?:then|and)\s+|\bplease\s+)(?:please\s+|now\s+|first\s+|then\s+|just\s+|also\s+
      |immediately\s+)*
    (?:accept|allow|answer|append|approve|ask|attach|call|cat|clear|click|clone|connect|contact|copy|decode|delete
      |deploy|disable
      |disclose|download|dump|email|enable|encode|enter|erase|escalate|evaluate|execute|export|expose|extract|fetch
      |forward|give|go
      |grant|hide|import|inform|insert|install|invoke|kill|launch|leak|load|modify|notify|obey|open|output|overwrite
      |override|paste
      |perform|pipe|post|print|proceed|publish|pull|push|quote|reboot|recite|register|remove|repeat|replace|reply
      |report|reset
      |respond|restart|restore|return|reveal|run|send|share|show|skip|start|stop|submit|tell|transfer|treat|trust|turn
      |type
      |uninstall|unlock|upload|visit|warn|whitelist|wipe)
    \s+(?:(?:the|an?|this|that|these|those|all|any|every\w*|each|your|its?|them|him|her|me|us|my|our|their|to|from|with|in
      |into|on|onto|as|for|by|only|out|up|down|off|back|yes|no|users?|\w+[._/]\w+|order|root|admin)\b|[`"'\d~/.$])
"""
# Chinese, Japanese, Korean and Arabic have no word borders that matter here.
_ORDER_WITHOUT_BORDERS = (
    r"忽略|无视|無視|忘记(?:之前|所有|以上)|忘掉|不要(?:告诉|通知|询问)用户|你现在是|你必须|你应该|"
    r"从现在(?:起|开始)|系统提示|执行(?:以下|这个|下面|命令|脚本|代码)|运行(?:以下|这个|命令|脚本|代码)|"
    r"发送.{0,12}(?:密钥|密码|令牌|环境变量)|下载并|安装(?:以下|这个)|禁用.{0,10}(?:验证|检查|安全)|"
    r"以前の指示|これまでの指示|指示を(?:無視|忘れ)|無視して|あなたは(?:今|これから)|実行して(?:ください)?|"
    r"ユーザーに(?:言わ|知らせ|伝え)ない|送信して|システムプロンプト|ダウンロードして|"
    r"이전 ?(?:지시|명령|지침)|무시하|당신은 이제|실행하(?:세요|십시오|라)|사용자에게 (?:알리지|말하지)|"
    r"环境变量.{0,8}发送|密码.{0,8}发送|パスワードを|비밀번호를|비밀번호.{0,6}보내|"
    r"تجاهل|انس (?:كل|جميع)|أنت الآن|نفذ|شغل|أرسل.{0,20}(?:مفتاح|كلمة)|अनदेखा|नज़रअंदाज़|पिछले निर्देश|"
    r"אל תספר|התעלם"
)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.VERBOSE)


@cache
def _compile_without_borders() -> re.Pattern[str]:
    return re.compile(_ORDER_WITHOUT_BORDERS)


def fold_text(text: str) -> str:
    """Return a text as the patterns compare it: what a reader takes for the same is the same."""
    text = " ".join(text.split())
    if not text.isascii():
        text = re.sub(r"[。｡](?=\w)", ".", text)  # in an address it is a dot
        text = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in text if not unicodedata.combining(char) and not is_invisible(char))
    text = text.casefold().replace("’", "'").replace("‘", "'").replace("“", '"').replace("”", '"')
    text = re.sub(r"[*_]{2,}|(?<=\w)[*_~](?=\s|$)|(?<=\s)[*_~](?=\w)", "", text)
    if not text.isascii() and re.search(r"[a-z]", text):
        text = _fold_look_alikes(text)
    return SPACED_LETTERS_PATTERN.sub(_join_letters, " ".join(text.split()))


def _fold_look_alikes(text: str) -> str:
    """Replace look-alike letters in words that also have Latin letters, or in texts that are mostly Latin."""
    return " ".join(
        word.translate(LOOK_ALIKES) if re.search(r"[a-z]", word) or word.translate(LOOK_ALIKES).isascii() else word
        for word in text.split(" ")
    )


def _join_letters(match: re.Match[str]) -> str:
    # an identifier such as a_b_c_d or a version keeps its marks
    return LETTER_GAP_PATTERN.sub("", match[0]) if not any(map(str.isdigit, match[0])) else match[0]


def has_command(text: str) -> bool:
    """Return whether a text holds a command, code to run or an address."""
    folded = fold_text(text[:MAX_ORDER_CHARS])
    return any(_compile(pattern).search(folded) for pattern in (_ADDRESS, _COMMAND, _NAMED_COMMAND))


def has_request(text: str) -> bool:
    """Return whether a text asks its reader to do something: to run, fetch, send, approve or switch off something."""
    folded = fold_text(text[:MAX_ORDER_CHARS])
    return any(_compile(_REQUEST).search(variant) for variant in {folded, _read_digits_as_letters(folded)})


def has_imperative(text: str) -> bool:
    """Return whether a text is in the form of an order to do something now."""
    return _compile(_IMPERATIVE).search(fold_text(text[:MAX_ORDER_CHARS])) is not None


def has_injection(text: str) -> bool:
    """Return whether a text speaks to a model against its user, or claims the permission of a person."""
    folded = fold_text(text[:MAX_ORDER_CHARS])
    if match := ASKED_FIRST_PATTERN.fullmatch(folded):
        folded = match["rule"]
    plain = " ".join(re.sub(r"[^\w\s'.!?:,/-]+|(?<=\w)[.,:](?=\s)", " ", folded).split())
    variants = {folded, plain, _read_digits_as_letters(folded)}
    if any(word[::-1] in folded for word in ("ignore", "instruction", "disregard")):
        variants.add(folded[::-1])
    if any(_compile(_INJECTION).search(variant) for variant in variants):
        return True
    return not text.isascii() and _compile_without_borders().search(unicodedata.normalize("NFKC", text)) is not None


def _read_digits_as_letters(folded: str) -> str:
    return MIXED_WORD_PATTERN.sub(_replace_leet_digits, folded)


def _replace_leet_digits(match: re.Match[str]) -> str:
    return match[0].translate(LEET_DIGITS) if re.search("[a-z]", match[0]) else match[0]
