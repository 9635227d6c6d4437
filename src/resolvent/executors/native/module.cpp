// What Python calls: a program, made once for a system, and on the CPU one call for one sweep. What that runs,
// `program.h` says; how, `sweep.h`. All is one translation unit, and hidden but for the function at the end.
#include "tensors.h"

#include <optional>

#include "gradients.h"

// Does the work on floats or doubles, without Python's lock unless that takes longer to give away and take back.
template <class Work> bool without_python(bool doubles, double operations, Work work) {
    bool done = false;
    PyThreadState* state = operations > 10000 ? PyEval_SaveThread() : nullptr;
    try {
        doubles ? work(double()) : work(float());
        done = true;
    } catch (const std::exception&) {
    }
    if (state) PyEval_RestoreThread(state);
    if (!done) PyErr_NoMemory();
    return done;
}

const char *const NAME = "resolvent.program", *const NUMBERS = "resolvent.numbers";
const Program* program_of(PyObject* capsule) { return (const Program*)PyCapsule_GetPointer(capsule, NAME); }
const Numbers* numbers_of(PyObject* capsule) { return (const Numbers*)PyCapsule_GetPointer(capsule, NUMBERS); }

struct WrongType : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

std::vector<Index> integers(const char* what, PyObject* tuple) {
    const auto at = [&](size_t i, const char* how) { return what + (": entry " + std::to_string(i)) + how; };
    if (!PyTuple_Check(tuple)) throw WrongType(what + std::string(": a tuple of integers is needed"));
    std::vector<Index> numbers(PyTuple_Size(tuple));
    for (size_t i = 0; i < numbers.size(); i++) {
        int overflow = 0;
        PyObject* number = PyTuple_GetItem(tuple, i);
        if (!PyLong_Check(number)) throw WrongType(at(i, " is no integer"));
        numbers[i] = PyLong_AsLongLongAndOverflow(number, &overflow);
        if (overflow) throw std::invalid_argument(at(i, " exceeds 64 bits"));
    }
    return numbers;
}

template <class Make> PyObject* parsed(Make make) {
    try {
        return make();
    } catch (const WrongType& wrong) {
        return PyErr_Format(PyExc_TypeError, "%s", wrong.what());
    } catch (const std::invalid_argument& invalid) {
        return PyErr_Format(PyExc_ValueError, "%s", invalid.what());
    } catch (const std::exception&) {
        return PyErr_NoMemory();
    }
}

// (integers) to a program, which serves points of any size: kind; channels; longest lag; axes; kernel, before, three
// each; transposed; how many blocks, where each ends, the code of each; how many rectangles, each of six ends; how many
// steps, each 0, rectangle, reach, or 1, block, or 2, stride, how many steps, and these.
PyObject* call_program(PyObject* const* a) {
    return parsed([&] {
        auto program = std::make_unique<Program>(Parser(integers("program", a[0])).parse());
        PyObject* capsule = PyCapsule_New(program.get(), NAME, [](PyObject* self) { delete program_of(self); });
        if (capsule) program.release();
        return capsule;
    });
}

// (integers, factors) to numbers besides the reals: see `numbers.h`.
PyObject* call_numbers(PyObject* const* a) {
    return parsed([&] {
        const std::vector<Index> places = integers("numbers", a[0]);
        std::vector<double> factors(PyTuple_Check(a[1]) ? PyTuple_Size(a[1]) : 0);
        for (size_t i = 0; i < factors.size(); i++) factors[i] = PyFloat_AsDouble(PyTuple_GetItem(a[1], i));
        if (PyErr_Occurred()) return (PyObject*)nullptr;
        auto numbers = std::make_unique<Numbers>(parse_numbers(places, factors));
        PyObject* capsule = PyCapsule_New(numbers.get(), NUMBERS, [](PyObject* self) { delete numbers_of(self); });
        if (capsule) numbers.release();
        return capsule;
    });
}

// (empty_strided, deterministic), of which PyTorch may have neither, to the two that stood there before; None for none.
PyObject* call_connect(PyObject* const* a) {
    const auto usable = [](PyObject* x) { return x == Py_None || PyCallable_Check(x); };
    if (!usable(a[0]) || !usable(a[1])) return PyErr_Format(PyExc_TypeError, "a function or None is needed");
    PyObject* before = memory ? memory : PyTuple_Pack(2, Py_None, Py_None);
    memory = a[0] == Py_None || a[1] == Py_None ? nullptr : PyTuple_Pack(2, a[0], a[1]);
    return before;
}

PyObject* nothing() { return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None); }

// Program, numbers or None, threads, mode, history, weight, bias, y0, z0, point, value and inside, as sweeps are called
// with; or that a tensor is not as the program needs it. The mode says what σ is, the history how many steps are given.
struct Call {
    const Program* f;
    const Numbers* numbers;
    const Index threads, mode, history;
    std::optional<Given> given;

    explicit Call(PyObject* const* a)
        : f(program_of(a[0])), numbers(a[1] == Py_None ? nullptr : numbers_of(a[1])), threads(PyLong_AsLongLong(a[2])),
          mode(PyLong_AsLongLong(a[3])), history(PyLong_AsLongLong(a[4])) {
        if (!PyErr_Occurred() && (mode < NONE || mode > SLOPE_AT))
            PyErr_Format(PyExc_ValueError, "mode is %S, not 0 to 3", a[3]);
        if (PyErr_Occurred()) return;
        given.emplace(*f, a + 5, numbers ? numbers->size : 1);
        given->fits = given->fits && a[5] != Py_None && (a[9] != Py_None || mode < SLOPE) && given->x.native() &&
                      history >= 0 && history <= given->extent.times;
        given->extent.history = history;
    }
    bool fits() const { return given && given->fits; }
    double operations() const { return f->work * given->extent.area * given->extent.batch; }
    template <class T> const T* weight() const { return (const T*)given->data[0]; }
    template <class T> Points<T> points(void* y, void* z) const {
        const auto [W, bias, y0, z0, point, value, inside] = given->data;
        return {(T*)y, (T*)z, (T*)y0, (T*)z0, (T*)bias, given->inputs, Sigma(mode), (T*)point,
                mode == SLOPE_AT ? (T*)value : nullptr, (bool*)inside, numbers};
    }
};

// To (y, z), or to None where a tensor is not as the program needs it.
PyObject* call_sweep(PyObject* const* a) {
    const Call call(a);
    if (!call.fits()) return nothing();
    const Given& g = *call.given;
    void *y, *z;
    PyObject* first = g.empty(g.x.ndim, g.shape, &y);
    PyObject* second = first ? g.empty(g.x.ndim, g.shape, &z) : nullptr;
    const auto work = [&](auto zero) {
        using T = decltype(zero);
        sweep<T>(*call.f, g.extent, call.weight<T>(), call.points<T>(y, z), call.threads);
    };
    const bool done = second && without_python(g.x.bits == 64, call.operations() + product(g.shape, g.x.ndim), work);
    PyObject* results = done ? PyTuple_Pack(2, first, second) : nullptr;
    Py_XDECREF(first), Py_XDECREF(second);
    return results;
}

// The same of a dual, source, whether the cotangent of a bias is wanted, how many of the first channels y0 had or 0, to
// (Q, cotangent of the bias or None, of y0 or None), where Q = v source*; or to None as above.
PyObject* call_gradients(PyObject* const* a) {
    const Call call(a);
    const bool biased = a[13] == Py_True;
    const Index channels = PyLong_AsLongLong(a[14]);
    void *source, *Q, *bias = nullptr, *y0 = nullptr;
    if (!call.fits() || !call.f->transposed || channels < 0 || channels > call.f->channels || a[12] == Py_None ||
        !readable(a[12], call.given->x, call.given->x.ndim, call.given->shape, &source))
        return nothing();
    const Given& g = *call.given;
    Index shape[16];
    std::copy(g.shape, g.shape + g.x.ndim, shape);
    shape[g.x.ndim - 1 - call.f->axes] = channels;
    PyObject* first = g.empty(call.f->weight_shape.size(), call.f->weight_shape.data(), &Q);
    PyObject* second = !first ? nullptr : biased ? g.empty(1, &call.f->channels, &bias) : Py_NewRef(Py_None);
    PyObject* third = !second ? nullptr : channels ? g.empty(g.x.ndim, shape, &y0) : Py_NewRef(Py_None);
    const auto work = [&](auto zero) {
        using T = decltype(zero);
        gradients<T>(*call.f, g.extent, call.weight<T>(), call.points<T>(nullptr, nullptr), (const T*)source,
                     {(T*)Q, (T*)bias, (T*)y0, channels}, call.threads);
    };
    const bool done = third && without_python(g.x.bits == 64, 2 * call.operations() + product(g.shape, g.x.ndim), work);
    PyObject* results = done ? PyTuple_Pack(3, first, second, third) : nullptr;
    Py_XDECREF(first), Py_XDECREF(second), Py_XDECREF(third);
    return results;
}

// (program, threads, weight or None, v, z) to Q, or to None as above.
PyObject* call_cotangent(PyObject* const* a) {
    const Index threads = PyLong_AsLongLong(a[1]);
    const Program* f = program_of(a[0]);
    if (PyErr_Occurred()) return nullptr;
    PyObject* const tensors[] = {a[2], Py_None, a[3], a[4], Py_None, Py_None, Py_None};
    const Given g(*f, tensors);
    if (!g.fits || g.inputs < f->channels || !g.x.native() || a[3] == Py_None || a[4] == Py_None) return nothing();
    void* Q;
    PyObject* result = g.empty(f->weight_shape.size(), f->weight_shape.data(), &Q);
    const auto work = [&](auto zero) {
        using T = decltype(zero);
        cotangent<T>(*f, g.extent, (const T*)g.data[2], (const T*)g.data[3], (T*)Q, threads);
    };
    const double operations = f->work * g.extent.area * g.extent.batch;
    if (result && !without_python(g.x.bits == 64, operations, work)) Py_CLEAR(result);
    return result;
}

// (program, weight or None, bias, y0, z0, point, value, inside) to (samples, channels of y0 or else z0, whether an
// address is no multiple of 16, the addresses, 0 for None), for kernels of other devices; or to None as above.
PyObject* call_addresses(PyObject* const* a) {
    const Program* f = program_of(a[0]);
    if (!f) return nullptr;
    const Given g(*f, a + 1);
    if (!g.fits) return nothing();
    uintptr_t all = 0;
    for (void* p : g.data) all |= uintptr_t(p);
    PyObject* facts = PyTuple_New(10);
    if (!facts) return nullptr;
    PyTuple_SetItem(facts, 0, PyLong_FromLongLong(g.extent.batch));
    PyTuple_SetItem(facts, 1, PyLong_FromLongLong(g.inputs));
    PyTuple_SetItem(facts, 2, PyBool_FromLong(all % 16));
    for (int i = 0; i < 7; i++) PyTuple_SetItem(facts, 3 + i, PyLong_FromVoidPtr(g.data[i]));
    return PyErr_Occurred() ? (Py_DECREF(facts), nullptr) : facts;
}

template <PyObject* (*function)(PyObject* const*), Py_ssize_t needed>
PyObject* counted(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (count == needed) return function(a);
    return PyErr_Format(PyExc_TypeError, "%zd arguments needed, got %zd", needed, count);
}

PyMethodDef methods[] = {
    {"program", (PyCFunction)(void (*)())counted<call_program, 1>, METH_FASTCALL, nullptr},
    {"numbers", (PyCFunction)(void (*)())counted<call_numbers, 2>, METH_FASTCALL, nullptr},
    {"connect", (PyCFunction)(void (*)())counted<call_connect, 2>, METH_FASTCALL, nullptr},
    {"addresses", (PyCFunction)(void (*)())counted<call_addresses, 8>, METH_FASTCALL, nullptr},
    {"sweep", (PyCFunction)(void (*)())counted<call_sweep, 12>, METH_FASTCALL, nullptr},
    {"gradients", (PyCFunction)(void (*)())counted<call_gradients, 15>, METH_FASTCALL, nullptr},
    {"cotangent", (PyCFunction)(void (*)())counted<call_cotangent, 5>, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC INIT() {
    bool able = true;
#if defined(__AVX512F__)
    able = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
    able = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#endif
    if (!able) return PyErr_Format(PyExc_ImportError, "this processor lacks the instructions the module was built for");
    if (connect_torch()) return PyModule_Create(&module);
    return PyErr_Format(PyExc_ImportError, "this PyTorch does not show its tensors through DLPack 1");
}