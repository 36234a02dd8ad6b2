/* SPDX-License-Identifier: Apache-2.0 */

/* What a store holds, in words for people who look for a reason at three in the morning. */

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "store/base/os.h"
#include "store/chunk.h"
#include "store/store_internal.h"

static void dump_time(FILE *out, int64_t time_ns)
{
	time_t seconds = time_ns / 1000000000;
	struct tm tm;
	char text[32];

	if (gmtime_r(&seconds, &tm) && strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm) > 0)
		fputs(text, out);
	else
		fprintf(out, "%" PRId64 " ns", time_ns);
}

/* Labels may hold anything; a dump stays one line per thing. */
static void dump_text(FILE *out, const char *text)
{
	fputc('\'', out);
	for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
		if (*c < 0x20 || *c >= 0x7f || *c == '\\' || *c == '\'')
			fprintf(out, "\\x%02x", *c);
		else
			fputc(*c, out);
	}
	fputc('\'', out);
}

static void dump_snap_line(FILE *out, const struct snap_info *info)
{
	char id[SNAP_ID_SIZE], parent[SNAP_ID_SIZE], root[NAME_HEX_SIZE];

	fprintf(out, "  %s number %" PRIu64 " parent %s lineage %" PRIu64 " root %s ",
		snap_id_to_text(info->id, id), info->seq,
		info->parent ? snap_id_to_text(info->parent, parent) : "-", info->lineage,
		info->has_root ? name_to_text(&info->root, root) : "-");
	dump_time(out, info->time_ns);
	fprintf(out, "%s%s%s", info->durable ? "" : " unsaved",
		info->flags & SNAP_AUTO ? " auto" : "", info->flags & SNAP_IMPORT ? " import" : "");
	if (info->branch[0])
		fprintf(out, " on %s", info->branch);
	if (info->label[0]) {
		fputs(" label ", out);
		dump_text(out, info->label);
	}
	fputc('\n', out);
}

static int dump_snap(void *arg, const struct snap_info *info)
{
	dump_snap_line(arg, info);
	return 0;
}

static int dump_branch(void *arg, const struct branch_info *info)
{
	char head[SNAP_ID_SIZE], undo[SNAP_ID_SIZE], root[NAME_HEX_SIZE];
	FILE *out = arg;

	fprintf(out, "  %s head %s undo %s lineage %" PRIu64 " changes %" PRIu64 " root %s%s\n",
		info->name, info->head ? snap_id_to_text(info->head, head) : "-",
		info->undo ? snap_id_to_text(info->undo, undo) : "-", info->lineage, info->changes,
		name_to_text(&info->root, root), info->mounted ? " mounted" : "");
	return 0;
}

/* ---- packs, from what the index says of them ---- */

struct pack_sum {
	uint64_t data, nodes, stored, raw;
};

struct pack_sums {
	struct pack_sum *sums; /* by pack number */
	size_t count;
	uint64_t damaged;
};

/* Packs count up from 1; a number beyond this is no pack but a damaged entry. */
#define PACKS_MAX (UINT32_C(1) << 24)

static int sum_chunk(void *arg, const struct chunk_info *info)
{
	struct pack_sums *p = arg;
	struct pack_sum *sum;

	if (info->raw_len == 0 || info->pack >= PACKS_MAX) {
		p->damaged++;
		return 0;
	}
	if (info->pack >= p->count) {
		size_t count = MAX((size_t)info->pack + 1, 2 * p->count);
		struct pack_sum *sums = os_realloc(p->sums, count * sizeof(*sums));

		if (!sums)
			return -ENOMEM;
		memset(sums + p->count, 0, (count - p->count) * sizeof(*sums));
		p->sums = sums;
		p->count = count;
	}

	sum = &p->sums[info->pack];
	if (info->kind == CHUNK_NODE)
		sum->nodes++;
	else
		sum->data++;
	sum->stored += info->stored_len;
	sum->raw += info->raw_len;
	return 0;
}

static int dump_packs(struct store *s, FILE *out)
{
	struct pack_sums p = { 0 };
	int r;

	r = chunks_each(s->chunks, sum_chunk, &p);
	for (size_t i = 0; r == 0 && i < p.count; i++) {
		const struct pack_sum *sum = &p.sums[i];

		if (sum->data + sum->nodes == 0)
			continue;
		fprintf(out,
			"  %08zx data chunks %" PRIu64 " nodes %" PRIu64 " bytes stored %" PRIu64
			" raw %" PRIu64 "\n",
			i, sum->data, sum->nodes, sum->stored, sum->raw);
	}
	if (r == 0 && p.damaged > 0)
		fprintf(out, "  damaged index entries %" PRIu64 "\n", p.damaged);
	free(p.sums);
	return r;
}

/* ---- the verbs ---- */

static int dump_store(struct store *s, FILE *out)
{
	struct store_stats stats;
	int r;

	r = store_stats(s, &stats);
	if (r < 0)
		return r;

	fprintf(out, "plyfs store, version %d, uuid ", FORMAT_VERSION);
	for (int i = 0; i < 16; i++)
		fprintf(out, "%02x", s->uuid[i]);
	fprintf(out, "%s\n", stats.failed ? ", stopped writing" : "");
	fprintf(out, "next inode %" PRIu64 ", next lineage %" PRIu64 "\n",
		atomic_load(&s->next_ino), atomic_load(&s->next_lineage));
	fprintf(out, "unsealed bytes %" PRIu64 ", in memory %" PRIu64 " node%s\n",
		stats.unsealed_bytes, stats.nodes, plural(stats.nodes));

	fprintf(out, "branches %" PRIu64 "\n", stats.branches);
	r = branch_each(s, dump_branch, out);
	if (r < 0)
		return r;
	fprintf(out, "snapshots %" PRIu64 ", %" PRIu64 " not saved yet\n", stats.snapshots,
		stats.unsealed_snapshots);
	r = snap_each(s, dump_snap, out);
	if (r < 0)
		return r;
	fprintf(out, "packs %" PRIu64 ", %" PRIu64 " chunk%s, %" PRIu64 " bytes on disk\n",
		stats.packs, stats.chunks, plural(stats.chunks), stats.pack_bytes);
	return dump_packs(s, out);
}

static int dump_tree(struct store *s, FILE *out, uint64_t snap_id,
		     void (*item_to_text)(FILE *out, const struct key *k, const struct val *v))
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct snap_info info;
	int r;

	r = snap_get(s, snap_id, &info);
	if (r < 0)
		return r;
	dump_snap_line(out, &info);
	r = snap_root(s, snap_id, &root);
	if (r < 0)
		return r;
	return root_dump(root, out, TREE_HEIGHT_MAX, item_to_text);
}

int store_dump(struct store *s, FILE *out, uint64_t snap_id,
	       void (*item_to_text)(FILE *out, const struct key *k, const struct val *v))
{
	int r = snap_id ? dump_tree(s, out, snap_id, item_to_text) : dump_store(s, out);

	if (r < 0)
		return r;
	return ferror(out) ? -EIO : 0;
}
