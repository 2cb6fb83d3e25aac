/* SPDX-License-Identifier: Apache-2.0 */
/* Text of any bytes in JSON. Without it a path that is not UTF-8 leaves a mount without status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cmd/access/jsontext.h"

static void check(const char *bytes, const char *shown)
{
	json_t *j = json_text(bytes);

	assert_non_null(j);
	assert_string_equal(json_string_value(j), shown);
	json_decref(j);
}

static void what_is_text_stays(void **state)
{
	check("", "");
	check("/mnt/<b>\"'&\n", "/mnt/<b>\"'&\n");
	check("/mnt/d\xc3\xa9j\xc3\xa0", "/mnt/d\xc3\xa9j\xc3\xa0");
}

static void what_is_not_becomes_question_marks(void **state)
{
	check("/mnt/\xff-\xfe <b>", "/mnt/?-? <b>");
	check("\xc3", "?");
	/* Which bytes were meant as UTF-8 is not known. */
	check("\xc3\xa9\x80", "?"
			      "?"
			      "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_text_stays),
		cmocka_unit_test(what_is_not_becomes_question_marks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
