/* SPDX-License-Identifier: Apache-2.0 */

/*
 * JUnit XML, by expat. Cases are counted, not the sums that the suites' attributes claim: those
 * mean different things to different writers. A case is what the first of these says that it is:
 * a <failure> in it, an <error>, a <skipped>; else it passed.
 *
 * The file comes from the code that is being tested, so it is hostile: a DOCTYPE ends the reading
 * (no entities, nothing to expand), and so do more levels than DEPTH (expat keeps every open tag).
 */

#include <expat.h>
#include <limits.h>
#include <string.h>

#include "env/plyfs.h"
#include "env/report.h"
#include "env/status.h"
#include "store/base/util.h"

/* expat 2.9 deprecates XML_GetCurrentLineNumber for what 2.5, in Debian 12, does not have. */
#pragma GCC diagnostic warning "-Wdeprecated-declarations"

/* Suites within suites: PHPUnit nests four. */
#define DEPTH 64

struct junit {
	XML_Parser parser;
	struct counts *counts; /* borrowed */
	const char *why;       /* we stopped */
	unsigned depth;
	unsigned case_depth; /* where a case is open; 0: none is */
	bool failure, error, skipped, not_run; /* of that case */
};

static void stop(struct junit *j, const char *why)
{
	j->why = why;
	(void)XML_StopParser(j->parser, XML_FALSE); /* it is parsing: we are called from there */
}

static const char *attribute(const XML_Char **attributes, const char *name)
{
	for (; attributes[0]; attributes += 2)
		if (strcmp(attributes[0], name) == 0)
			return attributes[1];
	return "";
}

static void begin_case(struct junit *j, const XML_Char **attributes)
{
	const char *status = attribute(attributes, "status");

	/* googletest's disabled tests have no child to say it. */
	j->not_run = strcmp(status, "notrun") == 0;
	j->skipped = j->not_run || strcmp(status, "disabled") == 0;
	j->failure = j->error = false;
	j->case_depth = j->depth;
}

static void begin_child(struct junit *j, const char *name, const XML_Char **attributes)
{
	j->failure |= strcmp(name, "failure") == 0;
	j->error |= strcmp(name, "error") == 0;
	if (strcmp(name, "skipped") != 0)
		return;
	j->skipped = true;
	/* ctest calls skipped, too, what it could not start; what asked for it says SKIP_. */
	j->error |= j->not_run && strncmp(attribute(attributes, "message"), "SKIP_", 5) != 0;
}

static void begin(void *data, const XML_Char *name, const XML_Char **attributes)
{
	struct junit *j = data;

	if (++j->depth > DEPTH) {
		stop(j, "it is nested too deeply");
		return;
	}
	if (j->depth == 1) {
		if (strcmp(name, "testsuites") != 0 && strcmp(name, "testsuite") != 0)
			stop(j, "its root is neither testsuites nor testsuite");
	} else if (!j->case_depth && strcmp(name, "testcase") == 0) {
		begin_case(j, attributes);
	} else if (j->case_depth && j->depth == j->case_depth + 1) {
		begin_child(j, name, attributes);
	}
}

static void end(void *data, const XML_Char *name)
{
	struct junit *j = data;

	if (j->depth-- != j->case_depth)
		return;
	j->case_depth = 0;
	j->counts->n[j->failure ? FAILED : j->error ? ERRORS : j->skipped ? SKIPPED : PASSED]++;
}

static void doctype(void *data, const XML_Char *name, const XML_Char *system,
		    const XML_Char *public, int internal)
{
	stop(data, "it has a DOCTYPE");
}

static void parser_freep(XML_Parser *p)
{
	if (*p)
		XML_ParserFree(*p);
}

int junit_read(const char *xml, size_t len, struct counts *counts)
{
	_cleanup_(parser_freep) XML_Parser parser = XML_ParserCreate(NULL);
	struct junit j = { .parser = parser, .counts = counts };
	enum XML_Status status = XML_STATUS_OK;

	if (!parser)
		return fail_memory();
	XML_SetUserData(parser, &j);
	XML_SetElementHandler(parser, begin, end);
	XML_SetStartDoctypeDeclHandler(parser, doctype);
	/* In pieces as large as can be: a token that spans several is read again for each. */
	do {
		int piece = (int)MIN(len, (size_t)INT_MAX / 2);

		len -= (size_t)piece;
		status = XML_Parse(parser, xml, piece, len == 0);
		xml += piece;
	} while (status == XML_STATUS_OK && len);
	if (status == XML_STATUS_OK)
		return 0;
	return fail(PLY_INVALID, "the JUnit XML report cannot be read: %s in line %lu",
		    j.why ? j.why : XML_ErrorString(XML_GetErrorCode(parser)),
		    (unsigned long)XML_GetCurrentLineNumber(parser));
}
