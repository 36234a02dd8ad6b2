/* SPDX-License-Identifier: Apache-2.0 */
/* cc example.c -o example $(pkg-config --cflags --libs libplyfs) && ./example REPOSITORY */
#include <err.h>
#include <plyfs.h>
#include <stdio.h>

#define TRY(call) ((call) < 0 ? errx(1, "%s", ply_error()) : (void)0)

static void test(struct ply_env *env, const char *when)
{
	struct ply_tests t;

	TRY(ply_env_run_tests(env, &t));
	printf("%s: %d passed, %d failed\n", when, (int)t.passed, (int)t.failed);
	ply_tests_free(&t);
}

int main(int argc, char *argv[])
{
	struct ply_env *env;
	struct ply_text good;

	TRY(ply_env_new("local", &env));
	TRY(ply_env_set(env, "workdir", argc > 1 ? argv[1] : "."));
	TRY(ply_env_set(env, "test_command", "python3 -m unittest"));
	TRY(ply_env_setup(env));
	test(env, "as it is");
	TRY(ply_env_checkpoint(env, "good", &good));
	TRY(ply_env_write_file(env, "calc.py", "add = max\n", 10));
	test(env, "broken");
	TRY(ply_env_restore(env, good.data));
	test(env, "restored");
	ply_text_free(&good);
	ply_env_free(env);
}
