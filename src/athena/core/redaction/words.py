"""Words for passwords, codes and logins in some twenty languages; `_` in them is a blank, a hyphen or `_`."""

# ruff: noqa: E501, SIM905 - tables of words and patterns

# Stems in lower case; up to seven letters may follow.
PASSWORD_WORDS = """
passw passphrase passwd pass_phrase passord mot_de_passe mots_de_passe mdp contrase palabra_de_paso clave_de_acceso
clave senha palavra_passe kennwort wachtw haslo hasł heslo hesl parola parole lösenord losenord salasan adgangskode
kodeord şifre sifre jelsz пароль парол συνθηματικ κωδικ παρωλ パスワード 暗号 密码 密碼 口令 비밀번호 암호 pwd pw pass
passe zugangscode phrase_secr phrase_de_passe frase_de_paso frase_segreta frase_secreta passfrase wachtzin lösenfras tunnuslause ww token api_key apikey access_key
"""
# stems that are words of their own, with no letters before or after
WHOLE_WORDS = frozenset(
    "token pass passe pw pwd mdp ww pin puk cvv cvc otp totp ftp ssh vpn rdp user works try_it mtan cod".split()
)

WEAK_WORDS = frozenset("token pass passe passes passed parole parola clave claves pw pwd paroles parolee hesl".split())
PIN_WORDS = """
pincode pin puk cvv cvc otp totp mtan пин пін 暗証番号 暗証 コード 验证码 驗證碼 인증번호 핀
"""
CODE_WORDS = """
code codes código códigos codigo codice codici kod kodem kód kode koden koodi koodin код kodu cod codul κωδικός
passcode combination
"""
LOGIN_WORDS = """
login melde log_in logon sign_in signin cred zugang anmeld accès identifiant acceso credenc accesso inloggen inlogg logga
dostęp přihl kirjaud логин логін вход giriş conectare belép σύνδεσ ログイン 登录 登入 로그인 ftp ssh vpn rdp user works
account benutzer utilisateur usuario utente gebruiker użytkownik uživatel användar brugernavn käyttäj wifi wi-fi wlan
try_it
"""
# what many people choose, and what is a password once it is said to be one
POPULAR_PASSWORDS = frozenset(
    """
princess dragon monkey letmein changeme qwerty iloveyou sunshine football baseball welcome shadow superman batman
starwars freedom swordfish hunter charlie michael jordan dragonfly password1 admin123 abc123 passw0rd trustno1 master
cheese chocolate pepper ginger summer winter ashley bailey butterfly cookie flower hello123 jennifer killer liverpool
lovely mustang ninja pokemon purple secret123 soccer tigger whatever123 yankees zxcvbn asdfgh qwertz azerty hallo
schatz passwort motdepasse doudou soleil bonjour loulou hola contraseña teamo senha123 ciao juventus welkom zaq12wsx
""".split()
)
# What joins a name and its value: "is" in many languages, and signs.
CONNECTORS = frozenset(
    """
einfach simply just simplement simplemente simplesmente semplicemente gewoon prostu prostě bara bare просто sadece
is was are were be 's it's it’s it c'est c’est ce das is: now still currently changed set reset to becomes equals reads = : := => -> → – — - ：
ist lautet war heißt heisst jetzt nun gleich est était sera devient maintenant es era fue será ahora é era foi agora
è era sarà adesso ora nu jest to brzmi teraz je bylo bude zní teď är var blir er blev nå on oli nyt это есть был теперь
є це был було тепер este acum a most az είναι ήταν artık şu olan は です が 是 为 為 은 는 이 가 als as comme como
""".split()
)
# What says that no value follows.
BLOCKING_WORDS = frozenset(
    """
must should contain contains requires require required needs need least minimum maximum min max length long hashed
hash encrypted bcrypt stored expires expired expire field policy not isn't wasn't never without instead example e.g.
muss müssen mindestens nicht doit doivent moins pas debe deben menos no deve devono almeno moet moeten minstens niet
musi muszą najmniej nie musí nejméně måste minst inte skal mindst ikke pitää vähintään ei должен минимум не menos
rfc iso section returned error errors failed line port version issue commit ticket build table column row status
""".split()
)
# stems of words that make a code a secret
CODE_QUALIFIERS = (
    "door", "gate", "alarm", "access", "entry", "unlock", "security", "verif", "2fa", "mfa", "otp", "backup", "recovery",
    "safe", "garage", "lock", "sms", "login", "auth", "one-time", "einmal", "pin", "pass", "secret", "confirm", "vault",
    "keypad", "building", "tür", "tor", "sicherheit", "zugang", "zutritt", "bestätig", "porte", "accès", "sécurité",
    "vérif", "digicode", "puerta", "acceso", "seguridad", "alarma", "porta", "acesso", "segurança", "sicurezza",
    "accesso", "cancello", "deur", "toegang", "beveiliging", "drzwi", "dostęp", "bezpiecz", "dveř", "dörr", "dør",
    "larm", "ovi", "hälyt", "двер", "домофон", "подтвержд", "доступ", "сигнализ", "kapı", "güvenlik", "doğrulama",
    "ușă", "acces", "securitate", "ajtó", "biztonsági", "πόρτα", "ασφαλείας", "two-factor", "device", "sim", "card",
    "wiederherstellung", "secours", "récupération", "recuperación", "recuperação", "herstel", "odzysk", "återställ",
)  # fmt: skip
HARMLESS_CODES = frozenset(
    """
error exit status return http response zip postal country area product source bar qr country-code color colour byte
fehler statuscode exitcode errorcode erreur retour état statut postal hex key-code char character unicode op machine
fout status-code błędu chyby fel fejl virhe ошибки възврат hata eroare hiba sorry vat tax dial currency language
resposta respuesta errore ritorno erro hs sap iso swift bank sort discount promo coupon rabatt gutschein postleitzahl
""".split()
)
NUMBER_UNITS = r"""(?xi)\s{0,2}(?:-(?=\w)|%|°|characters?|chars?|letters?|digits?|bits?|bytes?|symbols?|days?|hours?
    |minutes?|mins?|seconds?|secs?|ms\b|s\b|times?|weeks?|months?|years?|attempts?|users?|tokens?|words?|of\b|per\b
    |(?:and|or)\smore|to\s\d|zeichen|tage|stellen|stunden|minuten|sekunden|mal\b|caractères|caracteres|caratteri|chiffres
    |dígitos|cifre|cijfers|tekens|jours|días|dias|giorni|dagen|dni|znaków|cyfr|tecken|siffror|tegn|merkkiä|символ|цифр
    |дней|karakter|caractere|kb\b|mb\b|gb\b|lines?|rows?|errors?|times)"""
