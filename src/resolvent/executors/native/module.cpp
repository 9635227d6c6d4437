// What Python calls: a program, made once for a system, and on the CPU one call for one sweep.
//
// Everything is the one product `multiply_add`: for dense and recurrent machines in `lagged.h`, for convolutions in
// `convolution.h`. How that sweep runs, `sweep.h` says; what it runs, `program.h`.

#include "tensors.h"
#include "cotangent.h"

namespace {

// Does the work without Python's lock, unless it is over sooner than the lock is given away and taken back.
template <class Work> bool without_python(double operations, Work work) {
    bool full = false;
    PyThreadState* state = operations > 10000 ? PyEval_SaveThread() : nullptr;
    try {
        work();
    } catch (const std::exception&) {
        full = true;
    }
    if (state) PyEval_RestoreThread(state);
    if (full) PyErr_NoMemory();
    return !full;
}

const char* const NAME = "resolvent.program";

const Program* program_of(PyObject* capsule) { return (const Program*)PyCapsule_GetPointer(capsule, NAME); }

bool miscounted(Py_ssize_t count, Py_ssize_t needed) {
    if (count != needed) PyErr_Format(PyExc_TypeError, "%zd arguments needed, got %zd", needed, count);
    return count != needed;
}

// (integers) to a program, which serves points of any size: kind; channels; longest lag; axes; kernel, before, three
// each; transposed; how many blocks, where each ends, the code of each; how many rectangles, each of six ends; how many
// steps, each 0, rectangle, reach, or 1, block, or 2, stride, how many steps, and these.
PyObject* call_program(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (miscounted(count, 1)) return nullptr;
    if (!PyTuple_Check(a[0])) return PyErr_Format(PyExc_TypeError, "program: a tuple of integers is needed");
    try {
        std::vector<Index> numbers(PyTuple_Size(a[0]));
        for (size_t i = 0; i < numbers.size(); i++) {
            int overflow = 0;
            PyObject* number = PyTuple_GetItem(a[0], i);
            if (!PyLong_Check(number)) return PyErr_Format(PyExc_TypeError, "program: entry %zu is no integer", i);
            numbers[i] = PyLong_AsLongLongAndOverflow(number, &overflow);
            if (overflow) return PyErr_Format(PyExc_ValueError, "program: entry %zu exceeds 64 bits", i);
        }
        auto program = std::make_unique<Program>(Parser(numbers).parse());
        PyObject* capsule = PyCapsule_New(program.get(), NAME, [](PyObject* self) { delete program_of(self); });
        if (capsule) program.release();
        return capsule;
    } catch (const std::invalid_argument& invalid) {
        return PyErr_Format(PyExc_ValueError, "%s", invalid.what());
    } catch (const std::exception&) {
        return PyErr_NoMemory();
    }
}

// (empty_strided, deterministic), of which PyTorch may have neither, to the two that stood there before; None for none.
PyObject* call_connect(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (miscounted(count, 2)) return nullptr;
    for (int i = 0; i < 2; i++)
        if (a[i] != Py_None && !PyCallable_Check(a[i]))
            return PyErr_Format(PyExc_TypeError, "a function or None is needed");
    PyObject* before = Py_BuildValue("(NN)", empty_strided ? empty_strided : Py_NewRef(Py_None),
                                     deterministic ? deterministic : Py_NewRef(Py_None));
    const bool both = a[0] != Py_None && a[1] != Py_None;
    empty_strided = both ? Py_NewRef(a[0]) : nullptr, deterministic = both ? Py_NewRef(a[1]) : nullptr;
    return before;
}

// (program, threads, mode, history, weight, bias, y0, z0, point, value, inside, source) to (y, z) or, with a source, to
// (y, z, Q), where a dual's z is the v of Q = v source*; or to None where a tensor is not as the program needs it. The mode
// says what σ is, the history how many steps are given. Only y0 may have fewer channels, those of the first blocks.
PyObject* call_sweep(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (miscounted(count, 12)) return nullptr;
    const Program* f = program_of(a[0]);
    if (!f) return nullptr;
    const Index threads = PyLong_AsLongLong(a[1]), mode = PyLong_AsLongLong(a[2]), history = PyLong_AsLongLong(a[3]);
    if (PyErr_Occurred()) return nullptr;
    if (mode < NONE || mode > SLOPE_AT) return PyErr_Format(PyExc_ValueError, "mode is %lld, not 0 to 3", (long long)mode);
    Given g(*f, a + 4);
    const bool wanted = a[11] != Py_None;
    void *source, *y, *z, *Q = nullptr;
    if (!g.fits || a[4] == Py_None || (a[8] == Py_None && mode >= SLOPE) || !native(g.kind) || history < 0 ||
        history > g.extent.times || !readable(a[11], true, g.kind, g.ndim, g.shape, &source))
        return nothing();
    g.extent.history = history;
    const auto [W, bias, y0, z0, point, value, inside] = g.data;
    PyObject* first = empty(g.like, g.kind, g.ndim, g.shape, &y);
    PyObject* second = first ? empty(g.like, g.kind, g.ndim, g.shape, &z) : nullptr;
    PyObject* third = second && wanted ? empty(g.like, g.kind, f->weight_axes, f->weight_shape, &Q) : nullptr;
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        sweep<T>(*f, g.extent, (const T*)W,
                 {(T*)y, (T*)z, (T*)y0, (T*)z0, (T*)bias, g.inputs, Sigma(mode), (T*)point,
                  mode == SLOPE_AT ? (T*)value : nullptr, (bool*)inside},
                 threads);
        if (wanted) cotangent<T>(*f, g.extent, (const T*)z, (const T*)source, (T*)Q, threads);
    };
    PyObject* done = nullptr;
    const auto work = [&] { g.kind.bits == 64 ? run(double()) : run(float()); };
    const double operations = f->work * g.extent.area * g.extent.batch + product(g.shape, g.ndim);
    if (second && (third || !wanted) && without_python(operations, work))
        done = third ? PyTuple_Pack(3, first, second, third) : PyTuple_Pack(2, first, second);
    Py_XDECREF(first), Py_XDECREF(second), Py_XDECREF(third);
    return done;
}

// (program, threads, weight or None, v, z) to Q, or to None as above.
PyObject* call_cotangent(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (miscounted(count, 5)) return nullptr;
    const Program* f = program_of(a[0]);
    if (!f) return nullptr;
    const Index threads = PyLong_AsLongLong(a[1]);
    if (PyErr_Occurred()) return nullptr;
    View x;
    Extent extent;
    Index shape[16], given;
    if (!shaped(*f, a[3], x, extent, shape, &given) || given != f->channels) return nothing();
    const Kind floats = kind_of(x);
    void *W, *v, *z, *Q;
    if (!native(floats) || !readable(a[2], true, floats, f->weight_axes, f->weight_shape, &W) ||
        !readable(a[3], false, floats, x.ndim, shape, &v, &x) || !readable(a[4], false, floats, x.ndim, shape, &z))
        return nothing();
    PyObject* result = empty(a[3], floats, f->weight_axes, f->weight_shape, &Q);
    if (!result) return nullptr;
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        cotangent<T>(*f, extent, (const T*)v, (const T*)z, (T*)Q, threads);
    };
    const auto work = [&] { floats.bits == 64 ? run(double()) : run(float()); };
    if (without_python(f->work * extent.area * extent.batch, work)) return result;
    Py_DECREF(result);
    return nullptr;
}

// (program, weight or None, bias, y0, z0, point, value, inside) to (samples, channels of y0 or else z0, whether an address
// is no multiple of 16, the addresses, 0 for None), for kernels of other devices; or to None as above.
PyObject* call_addresses(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (miscounted(count, 8)) return nullptr;
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

PyMethodDef methods[] = {
    {"program", (PyCFunction)(void (*)())call_program, METH_FASTCALL, nullptr},
    {"connect", (PyCFunction)(void (*)())call_connect, METH_FASTCALL, nullptr},
    {"addresses", (PyCFunction)(void (*)())call_addresses, METH_FASTCALL, nullptr},
    {"sweep", (PyCFunction)(void (*)())call_sweep, METH_FASTCALL, nullptr},
    {"cotangent", (PyCFunction)(void (*)())call_cotangent, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)

PyMODINIT_FUNC INIT(MODULE)() {
#if defined(__AVX512F__)
    const bool able = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
    const bool able = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
    const bool able = true;
#endif
    if (!able) return PyErr_Format(PyExc_ImportError, "this processor lacks the instructions the module was built for");
    if (!connect_torch()) return PyErr_Format(PyExc_ImportError, "this PyTorch does not show its tensors through DLPack 1");
    return PyModule_Create(&module);
}