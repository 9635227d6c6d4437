// Numbers besides the reals, as `structure/numbers.py` has them: σ over them, and what a slope makes of others.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "series.h"

// out[k] = Σ c a[i] b[j], over the terms of one group after another.
struct Terms {
    struct Term {
        Index i, j;
        double c;
    };
    struct Group {
        Index k;
        size_t end;
    };
    std::vector<Term> terms;
    std::vector<Group> groups;

    template <class T, class Put> void each(const Vector<T>* a, const Vector<T>* b, Put put) const {
        const Term* term = terms.data();
        for (const Group& group : groups) {
            Vector<T> sum = {};
            for (const Term* end = terms.data() + group.end; term < end; term++) sum += T(term->c) * (a[term->i] * b[term->j]);
            put(group.k, sum);
        }
    }
};

struct Numbers {
    Index size = 1, order = 0;
    Terms forward, backward;    // products of nilpotents, and their adjoints
    std::vector<Terms> powers;  // n², n³, …, each of the one before it and n

    // s = σ(a + n) = Σ c[j] n^j; power has room for two elements.
    template <class T> void compose(const Vector<T>* c, const Vector<T>* y, Vector<T>* s, Vector<T>* power) const {
        s[0] = c[0];
        for (Index k = 1; k < size; k++) s[k] = c[1] * y[k];
        const Vector<T>* before = y;
        for (size_t p = 0; p < powers.size(); p++) {
            Vector<T>* next = power + (p % 2 ? size : 0);
            powers[p].each<T>(before, y, [&](Index k, Vector<T> sum) { next[k] = sum, s[k] += c[p + 2] * sum; });
            before = next;
        }
    }

    // out = s u or, transposed, the adjoint of u ↦ s u.
    template <class T> void image(const Vector<T>* s, const Vector<T>* u, Vector<T>* out, bool transposed) const {
        out[0] = s[0] * u[0];
        for (Index k = 1; k < size; k++) {
            out[k] = s[0] * u[k];
            if (transposed) out[0] += s[k] * u[k];
            else out[k] += s[k] * u[0];
        }
        (transposed ? backward : forward).each<T>(s, u, [&](Index k, Vector<T> sum) { out[k] += sum; });
    }
};

// From integers: size, order; how many lists, which are the products, their adjoints and the powers, and of each how many
// terms, each i, j, k, sorted by k, of which i, j, k are from 1 to below the size. The c of all terms are apart.
inline Numbers parse_numbers(const std::vector<Index>& integers, const std::vector<double>& factors) {
    size_t at = 0, used = 0;
    const auto take = [&](const char* what, Index low, Index high) {
        if (at == integers.size()) throw std::invalid_argument(std::string("numbers: end before ") + what);
        const Index x = integers[at++];
        if (x < low || x > high) throw std::invalid_argument(std::string("numbers: ") + what + " is " + std::to_string(x));
        return x;
    };
    Numbers numbers;
    numbers.size = take("the size", 2, 1 << 16), numbers.order = take("the order", 1, MOST_ORDER);
    numbers.powers.resize(numbers.order - 1);
    for (Index list = 0; list < numbers.order + 1; list++) {
        Terms& terms = list == 0 ? numbers.forward : list == 1 ? numbers.backward : numbers.powers[list - 2];
        for (Index rest = take("the number of terms", 0, 1 << 26); rest; rest--) {
            const Index i = take("a factor", 1, numbers.size - 1), j = take("a factor", 1, numbers.size - 1);
            const Index k = take("a result", terms.groups.empty() ? 1 : terms.groups.back().k, numbers.size - 1);
            if (used == factors.size()) throw std::invalid_argument("numbers: a term lacks its factor");
            terms.terms.push_back({i, j, factors[used++]});
            if (terms.groups.empty() || terms.groups.back().k < k) terms.groups.push_back({k, 0});
            terms.groups.back().end = terms.terms.size();
        }
    }
    if (at < integers.size() || used < factors.size()) throw std::invalid_argument("numbers: there are too many");
    return numbers;
}
