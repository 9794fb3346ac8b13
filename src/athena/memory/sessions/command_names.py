"""The names of programs that a shell runs, to recognise commands in texts that no person said."""

# Words that people rarely write but as a command: with an argument they are one anywhere.
PLAIN_COMMANDS = """
    rm rmdir mkdir mv cp ln chmod chown chgrp killall pkill nc ncat netcat socat telnet curl wget aria2c rsync scp sftp
    printenv setx visudo useradd usermod userdel groupadd adduser deluser passwd chpasswd crontab systemctl launchctl
    schtasks iptables nft ufw insmod modprobe mkfs fdisk parted umount mount losetup dd shred truncate xargs nohup
    setsid mkfifo certutil bitsadmin mshta rundll32 regsvr32 wmic osascript xdg-open gradlew mvnw xcodebuild msbuild
    spark-submit rscript nix-env nix-shell guix flatpak zypper emerge pacman winget choco scoop apt-get dpkg yum dnf
    apk brew npx pnpx bunx uvx pipx easy_install rake sbt lein ansible-playbook kubectl kubectx redis-cli mongosh
    sqlite3 psql pg_dump mysqldump htpasswd ssh-keygen ssh-add ssh-copy-id gpg openssl base64 xxd tcpdump nmap strace
    gdb ltrace ldconfig sysctl journalctl loginctl timedatectl hostnamectl sudo doas su pwsh powershell iex irm iwr
    busybox tclsh ksh zsh tmux
"""
# Words of the language or names that people talk about: a command only where one can stand.
TALKED_COMMANDS = """
    make ninja cmake bazel gradle mvn ant bash sh fish dash cat touch kill source exec eval python python3 node deno
    bun ruby perl php lua julia octave dotnet java go cargo rustc swift dart flutter mix stack cabal npm pnpm yarn pip
    pip3 uv poetry conda mamba gem bundle composer git gh docker podman helm terraform vagrant ansible aws gcloud az
    heroku vercel netlify dbt airflow jupyter pytest tox nox nix snap apt port code codex claude screen vim nano tee sed
    awk tar zip unzip env export reg shutdown
"""
