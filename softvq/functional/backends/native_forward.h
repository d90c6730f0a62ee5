/* The forward pass, and the nearest code alone. Legend in native_tile.h. */

#include "native_tile.h"

/* Forward, one row at one temperature: weights, and the sums that need no product. */
typedef struct {
    double total, cross, second;
} Sums;

static Sums weigh_dense(const Problem *p, const float *scores, float top, float temperature,
                        float *weights)
{
    vf inverse = spread_out(1 / temperature), least = spread_out(-p->cut);
    Sums sums = {0, 0, 0};
    for (int64_t begin = 0; begin < p->wide_codes; begin += STRETCH) {
        int64_t end = begin + STRETCH < p->wide_codes ? begin + STRETCH : p->wide_codes;
        vf total = {0}, cross = {0}, second = {0};
        for (int64_t k = begin; k < end; k += LANES) {
            vf logits = (load(scores + k) - top) * inverse;
            vi some = logits > least;
            logits = where(some, logits);
            vf weight = where(some, exp_of(logits));
            store(weights + k, weight);
            total += weight;
            cross += weight * logits;
            second += weight * load(p->squared + k);
        }
        sums.total += sum_of(total);
        sums.cross += sum_of(cross);
        sums.second += sum_of(second);
    }
    return sums;
}

static Sums weigh_picked(const Problem *p, Tile *t, int64_t count)
{
    Sums sums = {0, 0, 0};
    for (int64_t i = 0; i < LANES; i++) { /* beyond the last: weight nothing */
        t->picked[count + i] = -60;
        t->places[count + i] = 0;
    }
    for (int64_t i = 0; i < count; i += LANES) {
        float logits[LANES], weights[LANES];
        vf x = load(t->picked + i);
        store(logits, x);
        store(weights, exp_of(x));
        for (int64_t j = 0; j < LANES && i + j < count; j++) {
            sums.total += weights[j];
            sums.cross += weights[j] * logits[j];
            sums.second += weights[j] * p->squared[t->places[i + j]];
        }
        store(t->picked + i, load(weights));
    }
    return sums;
}

/* What the sums of a row say; `result` holds the weighted sum of codes. */
static void finish_row(const Problem *p, const Tile *t, int64_t r, int64_t s, Sums sums)
{
    int64_t n = t->begin + r, at = s * p->rows + n;
    const float *z = p->z + n * p->dim, *result = t->result + r * p->wide_dim;
    float *mean = p->mean + at * p->dim, inverse = 1 / sums.total;
    double norm = 0, length = 0, log_total = log(sums.total);
    for (int64_t d = 0; d < p->dim; d++) {
        mean[d] = t->bad[r] ? NAN : result[d] * inverse;
        norm += z[d] * z[d];
        length += mean[d] * mean[d];
    }
    double spread = sums.second / sums.total - length;
    double entropy = log_total - sums.cross / sums.total;
    p->spread[at] = t->bad[r] ? NAN : spread > 0 ? spread : 0;
    p->entropy[at] = t->bad[r] ? NAN : entropy > 0 ? entropy : 0;
    p->log_total[at] = t->bad[r] ? NAN : log_total;
    p->free_energy[at] = t->bad[r] ? NAN : norm - t->top[r] - p->temperature[s] * log_total;
}

static void forward_picked(const Problem *p, Tile *t, int64_t s, double *use)
{
    for (int64_t r = 0, held = 0; r < t->count; r++) {
        int64_t count = pick_row(p, t, r, p->temperature[s]);
        held = note_row(p, t, r, s, count, held);
        Sums sums = weigh_picked(p, t, count);
        add_picked(p, count, t->places, t->picked, t->result + r * p->wide_dim);
        double share = p->share[t->begin + r] / sums.total;
        for (int64_t i = 0; i < count; i++)
            use[t->places[i]] += t->picked[i] * share;
        finish_row(p, t, r, s, sums);
    }
}

static int forward_dense(const Problem *p, Tile *t, int64_t s, double *use)
{
    if (!need(&t->weights, p, t))
        return 0;
    int64_t rows = (t->count + GROUP - 1) / GROUP * GROUP, row = p->row;
    Sums sums[MOST_ROWS];
    for (int64_t r = 0; r < t->count; r++) {
        sums[r] = weigh_dense(p, t->scores + r * row, t->top[r], p->temperature[s],
                              t->weights + r * row);
        t->scale[r] = p->share[t->begin + r] / sums[r].total;
    }
    memset(t->weights + t->count * row, 0, (rows - t->count) * row * 4);
    for (int64_t begin = 0; begin < p->codes; begin += STRETCH) {
        int64_t steps = begin + STRETCH < p->codes ? STRETCH : p->codes - begin;
        multiply(rows, p->wide_dim, steps, t->weights + begin, row, 1,
                 p->values + begin * p->wide_dim, p->wide_dim, NULL, t->result, p->wide_dim);
    }
    for (int64_t k = 0; k < p->wide_codes; k += LANES) {
        float part[LANES];
        vf sum = {0};
        for (int64_t r = 0; r < t->count; r++)
            sum += t->scale[r] * load(t->weights + r * row + k);
        store(part, sum);
        for (int64_t i = 0; i < LANES && k + i < p->codes; i++)
            use[k + i] += part[i];
    }
    for (int64_t r = 0; r < t->count; r++) {
        finish_row(p, t, r, s, sums[r]);
        head_of(p, s, t->begin + r)[2] = -1;
    }
    return 1;
}

/* Rows `begin` to `end`, by the thread of that number; 0 where memory is short. */
int softvq_forward(const Problem *p, int64_t begin, int64_t end, int64_t thread)
{
    Tile t;
    int fine = make_tile(p, &t);
    int64_t uses = p->levels * p->codes;
    double *use = p->use + thread * uses;
    int codes_bad = !is_finite(p->squared, p->codes), any_bad = 0;
    for (int64_t at = begin; fine && at < end; at += t.size) {
        take_rows(p, &t, at, end);
        score(p, &t);
        for (int64_t r = 0; r < t.count; r++) {
            t.top[r] = find_top(p, &t, r, p->indices + at + r);
            t.bad[r] |= codes_bad || !isfinite(t.top[r]);
            any_bad |= t.bad[r];
            if (t.bad[r])
                p->indices[at + r] = 0; /* some code, as the other back ends have it */
            p->top[at + r] = t.bad[r] ? NAN : t.top[r];
        }
        for (int64_t s = 0; fine && s < p->levels; s++) {
            memset(t.result, 0, t.size * p->wide_dim * 4);
            if (is_sparse(p, &t, p->temperature[s]))
                forward_picked(p, &t, s, use + s * p->codes);
            else
                fine = forward_dense(p, &t, s, use + s * p->codes);
        }
    }
    for (int64_t i = 0; any_bad && i < uses; i++)
        use[i] = NAN;
    drop_tile(&t);
    return fine;
}

/* The nearest code of rows `begin` to `end`. */
int softvq_nearest(const Problem *p, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    Tile t;
    int fine = make_tile(p, &t), codes_bad = !is_finite(p->squared, p->codes);
    for (int64_t at = begin; fine && at < end; at += t.size) {
        take_rows(p, &t, at, end);
        score(p, &t);
        for (int64_t r = 0; r < t.count; r++) {
            float top = find_top(p, &t, r, p->indices + at + r);
            if (t.bad[r] || codes_bad || !isfinite(top))
                p->indices[at + r] = 0;
        }
    }
    drop_tile(&t);
    return fine;
}
