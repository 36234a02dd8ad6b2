# SPDX-License-Identifier: Apache-2.0
"""embed.py INPUT OUTPUT NAME HEADER: a file's bytes as C: NAME[] and NAME_len, declared in HEADER."""
import json
import sys

source, output, name, header = sys.argv[1:]
with open(source, encoding="utf-8") as f:
    data = json.dumps(json.load(f), separators=(",", ":"), ensure_ascii=False).encode()
with open(output, "w", encoding="ascii") as f:
    f.write('/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by embed.py of openapi.json. */\n\n'
            '#include "%s"\n\nconst unsigned char %s[] = {\n' % (header, name))
    for at in range(0, len(data), 16):
        f.write("\t%s,\n" % ", ".join("0x%02x" % b for b in data[at:at + 16]))
    f.write("};\nconst size_t %s_len = sizeof(%s);\n" % (name, name))
