/* Soft assignment of rows to codes in one pass forward and one backward, float32.

   N rows, D features, K codes, S temperatures. A thread calls a pass once, for its own rows, and
   takes them a tile of rows at a time: scores of the tile against all codes, then each temperature.
   Formulas are those of reference.py; the gradient to a score is
   q (a - sum q a) / T - q g, with a the gradient to a weight q and g that of the free energy.

   A weight below e^-cut of the row's largest is zero here, with cut = 21 + log K. All of a row's
   that are left out add up to less than e^-21 = 8e-10 of its largest, and to less than 2^-25 nat of
   its entropy. Where few are left in a tile (SPARSE_SHARE) they are picked out, and everything but
   the scores is done with them alone; elsewhere it is dense products. */

#pragma once

#include "native_math.h"

#define TILE_BYTES (1536 * 1024) /* scores of a tile of rows */
#define LEAST_ROWS 8 /* each tile of rows reads all codes and adds to all their gradients */
#define MOST_ROWS 48
#define STRETCH 256 /* codes that a product with the codebook takes at once: they stay in the cache */

typedef struct {
    int64_t rows, codes, dim, levels, threads;
    int64_t wide_codes, wide_dim; /* padded to whole panels and vectors */
    int64_t row, pull_row; /* floats from a tile's row to the next, of scores and of pulls */
    float cut, sparse_share;
    /* wide_codes / PANEL panels of (dim + 1 + levels, PANEL): features, |p|^2, gradient of use */
    float *panels;
    float *bias;    /* wide_codes: -|p|^2, -1e30 for a dropped code, -inf beyond the last */
    float *squared; /* wide_codes */
    float *values;  /* wide_codes x wide_dim: codes, zeros beyond */
    const float *codebook, *d_use;
    const uint8_t *usable;
    const float *z, *temperature, *share; /* share: part of each row in the use, before weights */
    float *mean, *spread, *free_energy, *entropy, *top, *log_total;
    int64_t *indices;
    double *use;    /* threads x levels x codes */
    int32_t *notes; /* of the forward pass for the backward one; see below */
    const float *d_mean, *d_spread, *d_free, *d_entropy; /* levels first; NULL: nothing */
    const uint8_t *flows; /* levels x FLOWS: which of them have a gradient */
    float *d_z, *d_codes; /* d_codes: threads x wide_codes x wide_dim */
    double *column, *d_temperature; /* threads x wide_codes; threads x levels */
    float *d_codebook;
} Problem;

enum { PULL, SPREAD, FREE, ENTROPY, USE, FLOWS };

typedef struct {
    int64_t size, count, begin; /* rows that a tile holds, that this one has, and the first */
    float *z, *scores, *most;   /* 2 z; scores; vectors of panel maxima */
    float *weights, *flow, *more; /* as large as scores; made when first needed */
    float *pull, *result;       /* size x pull_row; size x wide_dim */
    float *top, *scale;
    int32_t *places;
    float *picked;
    uint8_t *bad;
} Tile;

static void *get(int64_t count, int64_t size)
{
    int64_t bytes = (count * size + 127) / 64 * 64;
    return aligned_alloc(64, bytes);
}

static void drop_tile(Tile *t)
{
    void *all[] = {t->z, t->scores, t->most, t->weights, t->flow, t->more, t->pull, t->result,
                   t->top, t->scale, t->places, t->picked, t->bad};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static int make_tile(const Problem *p, Tile *t)
{
    memset(t, 0, sizeof *t);
    t->size = TILE_BYTES / 4 / p->wide_codes / GROUP * GROUP;
    t->size = t->size < LEAST_ROWS ? LEAST_ROWS : t->size > MOST_ROWS ? MOST_ROWS : t->size;
    t->z = get(t->size * p->wide_dim, 4);
    t->scores = get(t->size * p->row, 4);
    t->most = get(t->size * (p->wide_codes / PANEL), 4);
    t->pull = get(t->size * p->pull_row, 4);
    t->result = get(t->size * p->wide_dim, 4);
    t->top = get(t->size, 4);
    t->scale = get(t->size, 4);
    t->places = get(p->wide_codes + PANEL, 4);
    t->picked = get(p->wide_codes + PANEL, 4);
    t->bad = get(t->size, 1);
    return t->z && t->scores && t->most && t->pull && t->result && t->top && t->scale &&
           t->places && t->picked && t->bad;
}

static int need(float **buffer, const Problem *p, const Tile *t)
{
    if (!*buffer)
        *buffer = get(t->size * p->row, 4);
    return *buffer != NULL;
}

/* Panels, bias and squares of codes `begin` to `end`, whole panels of them. */
int softvq_pack(const Problem *p, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    int64_t steps = p->dim + 1 + p->levels;
    for (int64_t k = begin; k < end; k++) {
        float *panel = p->panels + k / PANEL * steps * PANEL + k % PANEL;
        const float *code = p->codebook + k * p->dim;
        int inside = k < p->codes;
        double squared = 0; /* its rounding would be part of every score */
        for (int64_t d = 0; d < p->dim; d++) {
            float value = inside ? code[d] : 0;
            squared += (double)value * value;
            panel[d * PANEL] = value;
            p->values[k * p->wide_dim + d] = value;
        }
        for (int64_t d = p->dim; d < p->wide_dim; d++)
            p->values[k * p->wide_dim + d] = 0;
        panel[p->dim * PANEL] = p->squared[k] = squared;
        for (int64_t s = 0; s < p->levels; s++)
            panel[(p->dim + 1 + s) * PANEL] =
                inside && p->d_use ? p->d_use[s * p->codes + k] : 0;
        p->bias[k] = !inside ? -INFINITY : p->usable && !p->usable[k] ? -1e30f : -p->squared[k];
    }
    return 1;
}

/* Notes: the codes that the forward pass has picked, so that the backward pass needs no scores.
   levels x rows heads of (first row of the tile, place in the tile's pool, count), then the places,
   then the logits, in pools of KEPT a row that the rows of a tile share. Count -1: not noted. */
#define KEPT 32
#define HEAD 3

static int32_t *head_of(const Problem *p, int64_t s, int64_t n)
{
    return p->notes + (s * p->rows + n) * HEAD;
}

static int32_t *places_of(const Problem *p, int64_t s, const int32_t *head)
{
    return p->notes + p->levels * p->rows * HEAD + (s * p->rows + head[0]) * KEPT + head[1];
}

static float *logits_of(const Problem *p, int64_t s, const int32_t *head)
{
    return (float *)places_of(p, s, head) + p->levels * p->rows * KEPT;
}

/* Notes what was picked for a row, if there is room after `held`; returns what is held then. */
static int64_t note_row(const Problem *p, const Tile *t, int64_t r, int64_t s, int64_t count,
                        int64_t held)
{
    int32_t *head = head_of(p, s, t->begin + r);
    int fits = held + count <= t->count * KEPT;
    head[0] = (int32_t)t->begin;
    head[1] = (int32_t)held;
    head[2] = fits ? (int32_t)count : -1;
    if (!fits)
        return held;
    memcpy(places_of(p, s, head), t->places, count * 4);
    memcpy(logits_of(p, s, head), t->picked, count * 4);
    return held + count;
}

static int is_noted(const Problem *p, const Tile *t, int64_t s)
{
    for (int64_t r = 0; r < t->count; r++)
        if (head_of(p, s, t->begin + r)[2] < 0)
            return 0;
    return 1;
}

/* What was picked for a row, back in place. */
static int64_t recall_row(const Problem *p, Tile *t, int64_t r, int64_t s)
{
    const int32_t *head = head_of(p, s, t->begin + r);
    memcpy(t->places, places_of(p, s, head), head[2] * 4);
    memcpy(t->picked, logits_of(p, s, head), head[2] * 4);
    return head[2];
}

/* 2 z of the tile's rows. A row that is not finite is taken as zeros, and `bad`. */
static void take_rows(const Problem *p, Tile *t, int64_t begin, int64_t end)
{
    t->begin = begin;
    t->count = end - begin < t->size ? end - begin : t->size;
    memset(t->z, 0, t->size * p->wide_dim * 4);
    for (int64_t r = 0; r < t->count; r++) {
        const float *z = p->z + (begin + r) * p->dim;
        float *out = t->z + r * p->wide_dim;
        t->bad[r] = !is_finite(z, p->dim);
        for (int64_t d = 0; d < p->dim; d++)
            out[d] = t->bad[r] ? 0 : 2 * z[d];
    }
}

/* The scores of the tile's rows. */
static void score(const Problem *p, Tile *t)
{
    int64_t steps = p->dim + 1 + p->levels, panels = p->wide_codes / PANEL;
    int64_t rows = (t->count + GROUP - 1) / GROUP * GROUP;
    for (int64_t j = 0; j < panels; j++) {
        multiply(rows, PANEL, p->dim, t->z, p->wide_dim, 1, p->panels + j * steps * PANEL, PANEL,
                 p->bias + j * PANEL, t->scores + j * PANEL, p->row);
        for (int64_t r = 0; r < t->count; r++) {
            const float *scores = t->scores + r * p->row + j * PANEL;
            vf most = load(scores);
            for (int v = 1; v < VECTORS; v++)
                most = larger(load(scores + v * LANES), most);
            t->most[r * panels + j] = largest_of(most);
        }
    }
}

/* Largest score of a row, and its lowest place. */
static float find_top(const Problem *p, const Tile *t, int64_t r, int64_t *place)
{
    int64_t panels = p->wide_codes / PANEL, best = 0;
    const float *most = t->most + r * panels;
    for (int64_t j = 1; j < panels; j++)
        if (most[j] > most[best])
            best = j;
    const float *scores = t->scores + r * p->row;
    *place = best * PANEL;
    while (*place < best * PANEL + PANEL - 1 && scores[*place] != most[best])
        (*place)++;
    return most[best];
}

/* Least score of a row that has a weight at T. */
static float least_of(const Problem *p, float top, float temperature)
{
    float least = top - p->cut * temperature;
    return least < top ? least : nextafterf(top, -INFINITY);
}

/* Whether few enough weights of the tile are left at T to pick them out. */
static int is_sparse(const Problem *p, const Tile *t, float temperature)
{
    int64_t panels = p->wide_codes / PANEL, count = 0;
    int64_t limit = (int64_t)(p->sparse_share * t->count * p->codes) + t->count;
    for (int64_t r = 0; r < t->count; r++) {
        float least = least_of(p, t->top[r], temperature);
        for (int64_t j = 0; j < panels; j++)
            if (t->most[r * panels + j] > least)
                count += count_above(t->scores + r * p->row + j * PANEL, least);
        if (count > limit)
            return 0;
    }
    return 1;
}

/* The places and scores of a row's weights at T; the scores become logits, zeros beyond. */
static int64_t pick_row(const Problem *p, Tile *t, int64_t r, float temperature)
{
    int64_t panels = p->wide_codes / PANEL, count = 0;
    float top = t->top[r], inverse = 1 / temperature, least = least_of(p, top, temperature);
    const float *scores = t->scores + r * p->row;
    for (int64_t j = 0; j < panels; j++)
        if (t->most[r * panels + j] > least)
            count = pick(scores + j * PANEL, j * PANEL, least, t->places, t->picked, count);
    for (int64_t i = 0; i < count; i++)
        t->picked[i] = (t->picked[i] - top) * inverse;
    return count;
}

/* To a row: the weighted sum of picked rows of a matrix. */
INLINE void gather(int vectors, int64_t count, const int32_t *places, const float *weights,
                   const float *values, int64_t row, float *out)
{
    vf sums[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        sums[v] = load(out + v * LANES);
    for (int64_t i = 0; i < count; i++) {
        const float *value = values + places[i] * row;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[v] += weights[i] * load(value + v * LANES);
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        store(out + v * LANES, sums[v]);
}

static void add_picked(const Problem *p, int64_t count, const int32_t *places,
                       const float *weights, float *out)
{
    int64_t d = 0;
    for (; d + PANEL <= p->wide_dim; d += PANEL)
        gather(VECTORS, count, places, weights, p->values + d, p->wide_dim, out + d);
    for (; d < p->wide_dim; d += LANES)
        gather(1, count, places, weights, p->values + d, p->wide_dim, out + d);
}
