/* The backward pass, which computes scores and weights again. Legend in native_tile.h. */

#include "native_tile.h"

/* Backward. What flows back into a row at one temperature. */
typedef struct {
    const uint8_t *has;
    float temperature, top, log_total, spread, free_energy, entropy, share;
    const float *pull; /* of the mean, |p|^2 and use: what weights are to be multiplied by */
} Flow;

static Flow flow_of(const Problem *p, const Tile *t, int64_t r, int64_t s)
{
    const uint8_t *has = p->flows + s * FLOWS;
    int64_t n = t->begin + r, at = s * p->rows + n;
    Flow f = {has, p->temperature[s], t->top[r], t->bad[r] ? 0 : p->log_total[at], 0, 0, 0, 0,
              t->pull + r * p->pull_row};
    if (t->bad[r])
        return f;
    f.spread = has[SPREAD] ? p->d_spread[at] : 0;
    f.free_energy = has[FREE] ? p->d_free[at] : 0;
    f.entropy = has[ENTROPY] ? p->d_entropy[at] : 0;
    f.share = has[USE] ? p->share[n] : 0;
    return f;
}

/* The pull of each row: gradient of its mean, with what the spread's -|mean|^2 adds to it. */
static void fill_pull(const Problem *p, Tile *t, int64_t s)
{
    memset(t->pull, 0, t->size * p->pull_row * 4);
    for (int64_t r = 0; r < t->count; r++) {
        if (t->bad[r])
            continue;
        Flow f = flow_of(p, t, r, s);
        float *pull = t->pull + r * p->pull_row;
        int64_t at = (s * p->rows + t->begin + r) * p->dim;
        for (int64_t d = 0; d < p->dim; d++) {
            pull[d] = f.has[PULL] ? p->d_mean[at + d] : 0;
            if (f.has[SPREAD])
                pull[d] -= 2 * f.spread * p->mean[at + d];
        }
        pull[p->wide_dim] = f.spread;
        pull[p->wide_dim + 1 + s] = f.share;
    }
}

static int is_free_alone(const uint8_t *has)
{
    return !(has[PULL] || has[SPREAD] || has[ENTROPY] || has[USE]);
}

/* A dense row: its weights, and `flow`, in which the weights' gradients lie, becomes the scores'.
   Returns the gradient to T. */
static double flow_dense(const Problem *p, Flow f, const float *scores, float *weights,
                         float *flow, float *total)
{
    vf inverse = spread_out(1 / f.temperature), least = spread_out(-p->cut);
    int alone = is_free_alone(f.has);
    double delta = 0, warm = 0;
    for (int64_t begin = 0; begin < p->wide_codes; begin += STRETCH) {
        int64_t end = begin + STRETCH < p->wide_codes ? begin + STRETCH : p->wide_codes;
        vf sum = {0};
        for (int64_t k = begin; k < end; k += LANES) {
            vf logits = (load(scores + k) - f.top) * inverse;
            vi some = logits > least;
            logits = where(some, logits) - f.log_total;
            vf weight = where(some, exp_of(logits));
            store(weights + k, weight);
            if (alone)
                continue;
            vf gradient = load(flow + k) - f.entropy * logits;
            store(flow + k, gradient);
            sum += weight * gradient;
        }
        delta += sum_of(sum);
    }
    for (int64_t begin = 0; begin < p->wide_codes; begin += STRETCH) {
        int64_t end = begin + STRETCH < p->wide_codes ? begin + STRETCH : p->wide_codes;
        vf sum = {0};
        for (int64_t k = begin; k < end; k += LANES) {
            vf weight = load(weights + k), out = weight * -f.free_energy;
            if (!alone) {
                vf logits = (load(scores + k) - f.top) * inverse;
                vf part = weight * (load(flow + k) - (float)delta) * inverse;
                sum += part * where(logits > least, logits);
                out += part;
            }
            store(total + k, total == flow ? out : load(total + k) + out);
        }
        warm -= sum_of(sum);
    }
    return warm;
}

/* Columns of codes: what the rows' weights or flows add up to, times something of each row. */
static void add_columns(const Problem *p, const Tile *t, const float *matrix, float sign,
                        double *column)
{
    for (int64_t k = 0; k < p->wide_codes; k += LANES) {
        float part[LANES];
        vf sum = {0};
        for (int64_t r = 0; r < t->count; r++)
            sum += sign * t->scale[r] * load(matrix + r * p->row + k);
        store(part, sum);
        for (int64_t i = 0; i < LANES; i++)
            column[k + i] += part[i];
    }
}

/* One temperature of a tile by dense products; scores' gradients are written to or added to flow. */
static int backward_dense(const Problem *p, Tile *t, int64_t s, int first, float *codes,
                          double *column, double *warm)
{
    const uint8_t *has = p->flows + s * FLOWS;
    if (!need(&t->weights, p, t) || !need(&t->flow, p, t) || (!first && !need(&t->more, p, t)))
        return 0;
    int64_t wide = p->wide_codes, row = p->row, rows = (t->count + GROUP - 1) / GROUP * GROUP;
    int64_t steps = p->dim + 1 + p->levels, pull = p->pull_row;
    float *gradient = first ? t->flow : t->more;
    int alone = is_free_alone(has), pulls = has[PULL] || has[SPREAD];
    static const float nothing[PANEL];
    for (int64_t j = 0; !alone && j < wide / PANEL; j++) {
        const float *panel = p->panels + j * steps * PANEL;
        float *out = gradient + j * PANEL;
        multiply(rows, PANEL, pulls ? p->dim : 0, t->pull, pull, 1, panel, PANEL, nothing, out,
                 row);
        if (has[SPREAD] || has[USE])
            multiply(rows, PANEL, 1 + p->levels, t->pull + p->wide_dim, pull, 1,
                     panel + p->dim * PANEL, PANEL, NULL, out, row);
    }
    for (int64_t r = 0; r < t->count; r++) {
        Flow f = flow_of(p, t, r, s);
        *warm += flow_dense(p, f, t->scores + r * row, t->weights + r * row,
                            gradient + r * row, t->flow + r * row);
        t->scale[r] = f.spread;
    }
    if (pulls)
        multiply(wide, p->wide_dim, t->count, t->weights, 1, row, t->pull, pull, NULL, codes,
                 p->wide_dim);
    if (has[SPREAD])
        add_columns(p, t, t->weights, -1, column);
    return 1;
}

/* What dense flows of all temperatures give to rows and codes. */
static void close_dense(const Problem *p, Tile *t, float *codes, double *column)
{
    int64_t row = p->row, rows = (t->count + GROUP - 1) / GROUP * GROUP;
    memset(t->flow + t->count * row, 0, (rows - t->count) * row * 4);
    for (int64_t begin = 0; begin < p->codes; begin += STRETCH) {
        int64_t steps = begin + STRETCH < p->codes ? STRETCH : p->codes - begin;
        multiply(rows, p->wide_dim, steps, t->flow + begin, row, 1,
                 p->values + begin * p->wide_dim, p->wide_dim, NULL, t->result, p->wide_dim);
    }
    multiply(p->wide_codes, p->wide_dim, t->count, t->flow, 1, row, t->z, p->wide_dim, NULL, codes,
             p->wide_dim);
    for (int64_t r = 0; r < t->count; r++)
        t->scale[r] = 1;
    add_columns(p, t, t->flow, 1, column);
}

/* To a picked code: flow times 2 z, and weight times the pull where there is one. */
static void add_to_code(const Problem *p, float flow, const float *z, float weight,
                        const float *pull, float *code)
{
    if (pull)
        for (int64_t d = 0; d < p->wide_dim; d += LANES)
            store(code + d, load(code + d) + flow * load(z + d) + weight * load(pull + d));
    else
        for (int64_t d = 0; d < p->wide_dim; d += LANES)
            store(code + d, load(code + d) + flow * load(z + d));
}

static float weight_gradient(const Problem *p, Flow f, int64_t s, int64_t k)
{
    const float *value = p->values + k * p->wide_dim;
    float gradient = f.spread * p->squared[k];
    if (f.has[USE])
        gradient += f.share * p->d_use[s * p->codes + k];
    if (f.has[PULL] || f.has[SPREAD]) {
        vf sum = {0};
        for (int64_t d = 0; d < p->wide_dim; d += LANES)
            sum += load(f.pull + d) * load(value + d);
        gradient += sum_of(sum);
    }
    return gradient;
}

/* Flows of a row's picked codes: weights into `weights`, flows into `t->picked`. */
static double flow_picked(const Problem *p, Tile *t, Flow f, int64_t s, int64_t count,
                          float *weights)
{
    double delta = 0, warm = 0;
    float inverse = 1 / f.temperature, pivot = 0;
    for (int64_t i = 0; i < count; i += LANES)
        store(weights + i, exp_of(load(t->picked + i) - f.log_total));
    if (is_free_alone(f.has)) {
        for (int64_t i = 0; i < count; i++)
            t->picked[i] = -weights[i] * f.free_energy;
        return 0;
    }
    float *gradients = weights + p->row;
    for (int64_t i = 0; i < count; i++) {
        gradients[i] = weight_gradient(p, f, s, t->places[i]) -
                       f.entropy * (t->picked[i] - f.log_total);
        if (t->picked[i] == 0)
            pivot = gradients[i];
    }
    /* From the best code's on, so that rounding at the top is not magnified by 1 / T. */
    for (int64_t i = 0; i < count; i++)
        delta += weights[i] * (gradients[i] - pivot);
    for (int64_t i = 0; i < count; i++) {
        float part = weights[i] * (gradients[i] - pivot - (float)delta) * inverse;
        warm -= part * t->picked[i];
        t->picked[i] = part - weights[i] * f.free_energy;
    }
    return warm;
}

/* One temperature of a tile by picked codes, those that were noted or from the scores. */
static int backward_picked(const Problem *p, Tile *t, int64_t s, int noted, int dense,
                           float *codes, double *column, double *warm)
{
    const uint8_t *has = p->flows + s * FLOWS;
    if (!need(&t->more, p, t))
        return 0;
    float *weights = t->more;
    for (int64_t r = 0; r < t->count; r++) {
        if (t->bad[r])
            continue;
        Flow f = flow_of(p, t, r, s);
        int64_t count = noted ? recall_row(p, t, r, s) : pick_row(p, t, r, f.temperature);
        for (int64_t i = 0; i < LANES; i++)
            t->picked[count + i] = -60;
        *warm += flow_picked(p, t, f, s, count, weights);
        const float *pull = has[PULL] || has[SPREAD] ? f.pull : NULL, *z = t->z + r * p->wide_dim;
        if (!dense)
            add_picked(p, count, t->places, t->picked, t->result + r * p->wide_dim);
        for (int64_t i = 0; i < count; i++) {
            int64_t k = t->places[i];
            column[k] -= weights[i] * f.spread;
            if (dense) {
                t->flow[r * p->row + k] += t->picked[i];
                if (!pull)
                    continue;
                add_to_code(p, 0, z, weights[i], pull, codes + k * p->wide_dim);
            } else {
                column[k] += t->picked[i];
                add_to_code(p, t->picked[i], z, weights[i], pull, codes + k * p->wide_dim);
            }
        }
    }
    return 1;
}

static void finish_gradient(const Problem *p, const Tile *t)
{
    for (int64_t r = 0; r < t->count; r++) {
        int64_t n = t->begin + r;
        float free_energy = 0;
        for (int64_t s = 0; s < p->levels; s++)
            free_energy += p->flows[s * FLOWS + FREE] ? p->d_free[s * p->rows + n] : 0;
        for (int64_t d = 0; d < p->dim; d++)
            p->d_z[n * p->dim + d] =
                t->bad[r] ? NAN
                          : 2 * t->result[r * p->wide_dim + d] +
                                free_energy * t->z[r * p->wide_dim + d];
    }
}

static int is_idle(const uint8_t *has)
{
    return is_free_alone(has) && !has[FREE];
}

/* Whether all that a tile needs of its scores was noted. */
static int needs_no_scores(const Problem *p, const Tile *t)
{
    for (int64_t s = 0; s < p->levels; s++)
        if (!is_idle(p->flows + s * FLOWS) && !is_noted(p, t, s))
            return 0;
    return 1;
}

/* Gradients of rows `begin` to `end`; 0 where memory is short. */
int softvq_backward(const Problem *p, int64_t begin, int64_t end, int64_t thread)
{
    Tile t;
    int fine = make_tile(p, &t);
    float *codes = p->d_codes + thread * p->wide_codes * p->wide_dim;
    double *column = p->column + thread * p->wide_codes;
    double *warm = p->d_temperature + thread * p->levels;
    int any_bad = 0;
    for (int64_t at = begin; fine && at < end; at += t.size) {
        take_rows(p, &t, at, end);
        int noted = needs_no_scores(p, &t);
        if (!noted)
            score(p, &t);
        memset(t.result, 0, t.size * p->wide_dim * 4);
        for (int64_t r = 0; r < t.count; r++) {
            t.bad[r] |= isnan(p->top[at + r]);
            t.top[r] = t.bad[r] ? INFINITY : p->top[at + r];
            any_bad |= t.bad[r];
        }
        int dense = 0;
        for (int sparse = 0; sparse < 2; sparse++)
            for (int64_t s = 0; fine && s < p->levels; s++) {
                if (is_idle(p->flows + s * FLOWS))
                    continue;
                if ((noted || is_sparse(p, &t, p->temperature[s])) != sparse)
                    continue;
                fill_pull(p, &t, s);
                if (sparse)
                    fine = backward_picked(p, &t, s, noted, dense, codes, column, warm + s);
                else {
                    fine = backward_dense(p, &t, s, !dense, codes, column, warm + s);
                    dense = 1;
                }
            }
        if (fine && dense)
            close_dense(p, &t, codes, column);
        finish_gradient(p, &t);
    }
    for (int64_t k = 0; any_bad && k < p->codes; k++)
        column[k] = NAN;
    drop_tile(&t);
    return fine;
}

/* The gradient to codes `begin` to `end`, from what all threads have gathered, in their order. */
int softvq_finish(const Problem *p, int64_t begin, int64_t end, int64_t thread)
{
    (void)thread;
    for (int64_t k = begin; k < end; k++) {
        double column = 0;
        for (int64_t i = 0; i < p->threads; i++)
            column += p->column[i * p->wide_codes + k];
        for (int64_t d = 0; d < p->dim; d++) {
            float sum = 0;
            for (int64_t i = 0; i < p->threads; i++)
                sum += p->d_codes[(i * p->wide_codes + k) * p->wide_dim + d];
            p->d_codebook[k * p->dim + d] = sum - 2 * (float)column * p->codebook[k * p->dim + d];
        }
    }
    return 1;
}
