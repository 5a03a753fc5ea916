/* The JSON checks of Penstock in C: one pass over a message, without a value for any of it.
 *
 * `scan` answers "certainly plain" or "look closer". Plain JSON is well-formed, repeats no key, and has no shape that costs much to decode.
 * Only Python refuses anything: what this file does not understand, it hands over, and the answer is the same with and without it.
 *
 * No recursion, no allocation: the state is two arrays of fixed size on the stack. Each read is checked against `end`, and each byte is
 * read once, except that keys of one object are compared with each other.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define DEPTH_MAX 128 /* containers that are open at once; deeper JSON is for Python to refuse */
#define KEYS_MAX 256  /* keys of all objects that are open */
#define MEMBERS_MAX 64 /* keys of one object: they are compared in pairs */
#define DIGITS_MAX 100 /* of one number: longer ones may cost much, or be out of range */
#define CONTAINERS_MAX 10000 /* in the whole message: each is an object for Python */

typedef struct {
    const unsigned char *start;
    Py_ssize_t size;
} Key;

typedef struct {
    int is_object;
    int first_key; /* index of its first key */
} Container;

/* After the spaces that JSON allows between tokens. */
static const unsigned char *
skip_spaces(const unsigned char *at, const unsigned char *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
    }
    return at;
}

/* Whether one of eight bytes ends a run of plain characters: a quote, a backslash, a control character, or not ASCII. */
static int
has_mark(const unsigned char *at)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = UINT64_C(0x8080808080808080);
    uint64_t word, quote, backslash;
    memcpy(&word, at, sizeof word);
    quote = word ^ (ones * '"');
    backslash = word ^ (ones * '\\');
    /* A byte below n gives a borrow into its top bit. A false hit costs a closer look, and a miss is not possible. */
    return (((word - ones * 0x20) | (quote - ones) | (backslash - ones) | word) & tops) != 0;
}

/* After one character that is not ASCII, or NULL if it is not UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. */
static const unsigned char *
skip_character(const unsigned char *at, const unsigned char *end)
{
    unsigned char first = at[0], low = 0x80, high = 0xBF;
    Py_ssize_t more, index;
    if (first >= 0xC2 && first <= 0xDF) {
        more = 1;
    }
    else if (first >= 0xE0 && first <= 0xEF) {
        more = 2;
        low = first == 0xE0 ? 0xA0 : 0x80;
        high = first == 0xED ? 0x9F : 0xBF;
    }
    else if (first >= 0xF0 && first <= 0xF4) {
        more = 3;
        low = first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xF4 ? 0x8F : 0xBF;
    }
    else {
        return NULL;
    }
    if (end - at <= more || at[1] < low || at[1] > high) {
        return NULL;
    }
    for (index = 2; index <= more; index++) {
        if (at[index] < 0x80 || at[index] > 0xBF) {
            return NULL;
        }
    }
    return at + more + 1;
}

/* After the closing quote of a string whose first character is at `at`, or NULL. Keys have no escapes: two may spell the same key. */
static const unsigned char *
skip_string(const unsigned char *at, const unsigned char *end, int is_key)
{
    while (at != NULL && at < end) {
        if (end - at >= 8 && !has_mark(at)) {
            at += 8;
        }
        else if (*at == '"') {
            return at + 1;
        }
        else if (*at == '\\') {
            /* `\u` may be half of a pair, which is no text. */
            if (is_key || end - at < 2 || at[1] == '\0' || strchr("\"\\/bfnrt", at[1]) == NULL) {
                return NULL;
            }
            at += 2;
        }
        else if (*at < 0x20) {
            return NULL;
        }
        else {
            at = *at < 0x80 ? at + 1 : skip_character(at, end);
        }
    }
    return NULL;
}

static const unsigned char *
skip_digits(const unsigned char *at, const unsigned char *end)
{
    while (at < end && *at >= '0' && *at <= '9') {
        at++;
    }
    return at;
}

/* After a number, or NULL. What follows an exponent is not read: the next token then is none. */
static const unsigned char *
skip_number(const unsigned char *at, const unsigned char *end)
{
    const unsigned char *start, *next;
    if (*at == '-') {
        at++;
    }
    start = at;
    at = skip_digits(at, end);
    if (at == start || (*start == '0' && at - start > 1)) {
        return NULL;
    }
    if (at < end && *at == '.') {
        next = skip_digits(at + 1, end);
        if (next == at + 1) {
            return NULL;
        }
        at = next;
    }
    return at - start <= DIGITS_MAX ? at : NULL;
}

/* After a name such as `true`, or NULL. */
static const unsigned char *
skip_name(const unsigned char *at, const unsigned char *end, const char *name, Py_ssize_t size)
{
    return end - at >= size && memcmp(at, name, (size_t)size) == 0 ? at + size : NULL;
}

/* After a value that is no container, or NULL. */
static const unsigned char *
skip_scalar(const unsigned char *at, const unsigned char *end)
{
    switch (*at) {
    case '"':
        return skip_string(at + 1, end, 0);
    case 't':
        return skip_name(at, end, "true", 4);
    case 'f':
        return skip_name(at, end, "false", 5);
    case 'n':
        return skip_name(at, end, "null", 4);
    default:
        return skip_number(at, end);
    }
}

/* Whether one of these keys is the same as the one behind them. */
static int
is_repeated(const Key *keys, int count)
{
    const Key *key = keys + count;
    int index;
    for (index = 0; index < count; index++) {
        if (keys[index].size == key->size && memcmp(keys[index].start, key->start, (size_t)key->size) == 0) {
            return 1;
        }
    }
    return 0;
}

/* How deep plain JSON is nested, or -1: look closer. */
static int
scan_bytes(const unsigned char *at, const unsigned char *end)
{
    Key keys[KEYS_MAX];
    Container open[DEPTH_MAX];
    const unsigned char *start;
    int depth = 0, deepest = 0, containers = 0, key_count = 0;
    enum { VALUE, VALUE_OR_END, KEY, KEY_OR_END, AFTER } expected = VALUE;

    for (;;) {
        at = skip_spaces(at, end);
        if (at == end) {
            return expected == AFTER && depth == 0 ? deepest : -1;
        }
        if (expected == AFTER || (expected == VALUE_OR_END && *at == ']') || (expected == KEY_OR_END && *at == '}')) {
            if (depth == 0) {
                return -1;
            }
            if (expected == AFTER && *at == ',') {
                expected = open[depth - 1].is_object ? KEY : VALUE;
            }
            else if (*at == (open[depth - 1].is_object ? '}' : ']')) {
                depth--;
                key_count = open[depth].first_key;
                expected = AFTER;
            }
            else {
                return -1;
            }
            at++;
        }
        else if (expected == KEY || expected == KEY_OR_END) {
            if (*at != '"' || key_count == KEYS_MAX || key_count - open[depth - 1].first_key == MEMBERS_MAX) {
                return -1;
            }
            start = at + 1;
            at = skip_string(start, end, 1);
            if (at == NULL) {
                return -1;
            }
            keys[key_count].start = start;
            keys[key_count].size = at - 1 - start;
            if (is_repeated(keys + open[depth - 1].first_key, key_count - open[depth - 1].first_key)) {
                return -1;
            }
            key_count++;
            at = skip_spaces(at, end);
            if (at == end || *at != ':') {
                return -1;
            }
            at++;
            expected = VALUE;
        }
        else if (*at == '{' || *at == '[') {
            if (depth == DEPTH_MAX || containers == CONTAINERS_MAX) {
                return -1;
            }
            open[depth].is_object = *at == '{';
            open[depth].first_key = key_count;
            expected = *at == '{' ? KEY_OR_END : VALUE_OR_END;
            containers++;
            depth++;
            deepest = depth > deepest ? depth : deepest;
            at++;
        }
        else {
            at = skip_scalar(at, end);
            if (at == NULL) {
                return -1;
            }
            expected = AFTER;
        }
    }
}

static PyObject *
scan(PyObject *module, PyObject *data)
{
    const unsigned char *start;
    (void)module;
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "scan() takes bytes");
        return NULL;
    }
    start = (const unsigned char *)PyBytes_AS_STRING(data);
    return PyLong_FromLong(scan_bytes(start, start + PyBytes_GET_SIZE(data)));
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_O, "scan(data: bytes) -> int\n\nHow deep plain JSON is nested, or -1: look closer."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "penstock_native",
    .m_doc = "The JSON checks of Penstock in C.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit_penstock_native(void)
{
    return PyModuleDef_Init(&definition);
}
